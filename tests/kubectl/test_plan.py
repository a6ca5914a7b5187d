"""What applying a manifest would do."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic.alias_generators import to_camel

from kubectlkit.fake import FakeApi, Ran
from kubectlkit.objects import serving
from kvserving_kubectl.effects import RESTARTS, effects
from kvserving_kubectl.errors import Faulty
from kvserving_kubectl.resources import KVSERVINGS
from kvserving_operator.revisions import TEMPLATE_FIELDS

POLICY = {"name": "careful"}


def kinds(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    return {each.field: each.kind for each in effects(before, after)}


def test_fields_that_restart_are_those_that_shape_a_pod() -> None:
    shaping = {
        to_camel(name) if parts is True else f"{to_camel(name)}.{to_camel(part)}"
        for name, parts in TEMPLATE_FIELDS.items()
        for part in (["all"] if parts is True else parts)
    }
    assert shaping - {"kvCache"} == set(RESTARTS)


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("model", {"uri": "pvc://models/other"}, "Restart"),
        ("replicas", 5, "Scale"),
        ("tuning", {"mode": "Off"}, "Live"),
        ("quality", {"floors": []}, "Live"),
        ("routing", {"gatewayRef": {"name": "edge"}}, "Route"),
        ("kvCache", {"dtype": "int8"}, "Trial"),
        ("kvCache", {"dtype": "bfloat16"}, "Live"),
        ("rollout", {"drainSeconds": 5}, "Restart"),
        ("rollout", {"maxSurge": 1}, "Live"),
    ],
)
def test_each_field_has_its_effect(field: str, value: Any, kind: str) -> None:
    before = serving(rollbackPolicyRef=POLICY)["spec"]
    before.pop("routing", None)
    found = kinds(before, {**before, field: value})
    assert {kind} == set(found.values())


def test_without_a_policy_a_format_is_live_and_on_a_stock_image_a_restart() -> None:
    before = serving()["spec"]
    after = {**before, "kvCache": {"dtype": "int8"}}
    assert "Live" == kinds(before, after)["spec.kvCache.dtype"]
    stock = {**after, "engine": {**before["engine"], "plugin": "Disabled"}}
    assert "Restart" == kinds(before, stock)["spec.kvCache.dtype"]


def written(path: Path, **changes: Any) -> str:
    body = serving(**changes)
    body.pop("status")
    file = path / "a.yaml"
    file.write_text(yaml.safe_dump(body))
    return str(file)


def test_the_plan_of_an_edit_and_of_something_new(tmp_path: Path) -> None:
    api = FakeApi()
    file = written(tmp_path)
    (answer,) = json.loads(Ran(api)("plan", file, "-o", "json"))
    assert "Create" == answer["effects"][0]["effect"]
    api.add(KVSERVINGS, api.apply_dry_run(serving(), "demo"))
    assert "demo/chat: nothing changes" in Ran(api)("plan", file)
    out = Ran(api)("plan", written(tmp_path, replicas=3))
    assert "Scale" in out
    assert "spec.replicas" in out
    assert [] == api.patches


def test_a_faulty_manifest_is_not_planned(tmp_path: Path) -> None:
    ran = Ran(FakeApi())
    with pytest.raises(Faulty):
        ran("plan", written(tmp_path, replicas=-1))
    assert "spec.replicas: expected at least 0, got -1" in ran.err
