"""Manifests without a cluster: the CRDs' schemas and rules, the line, and the capacity."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectlkit.fake import Ran
from kubectlkit.manifests import mutated
from kubectlkit.objects import demo
from kvserving_kubectl.errors import Faulty, UsageError
from kvserving_kubectl.validation import check, rules
from kvserving_kubectl.validation.documents import Document, Fault, parse
from kvserving_operator.api.errors import SpecError
from kvserving_operator.api.rules import RULES_KEY
from kvserving_operator.api.v1alpha1 import PARSERS
from kvserving_tuner.errors import SizingError
from operatorkit.cases import cases

ROOT = Path(__file__).parents[2]
GOOD = """\
apiVersion: kvserving.dev/v1alpha1
kind: KVServing
metadata:
  name: chat
spec:
  model:
    uri: pvc://models/tiny
  engine:
    kvCacheMemory: 64Mi
    maxModelLen: 1024
"""


def corpus(verdict: str) -> list[Any]:
    """What the models and a real API server are tried on as well."""
    return [pytest.param(case.manifest, case.field, id=case.id) for case in cases(verdict)]


def faults_of(manifest: dict[str, Any]) -> list[Fault]:
    return list(check.faults(Document("file", manifest, {(): 1})))


@pytest.mark.parametrize(("manifest", "field"), corpus("accept"))
def test_accepts_what_the_server_accepts(manifest: dict[str, Any], field: str) -> None:
    assert [] == faults_of(manifest)


@pytest.mark.parametrize(("manifest", "field"), corpus("reject"))
def test_refuses_what_the_server_refuses_at_the_same_field(
    manifest: dict[str, Any], field: str
) -> None:
    found = faults_of(manifest)
    assert found
    assert any(field in str(fault) for fault in found), [str(fault) for fault in found]


def _refused_by_models(manifest: dict[str, Any]) -> bool:
    try:
        PARSERS[manifest["kind"]](manifest)
    except SpecError:
        return True
    return False


@pytest.mark.parametrize(("manifest", "field"), corpus("accept")[:12])
def test_rules_and_the_models_agree_on_random_edits(manifest: dict[str, Any], field: str) -> None:
    """CEL on one side, the models' Python twins on the other."""
    wrong = [
        (edited["spec"], [str(fault) for fault in found])
        for edited in mutated(manifest, count=40)
        if bool(found := faults_of(edited)) != _refused_by_models(edited)
    ]
    assert [] == wrong


def _rules(schema: dict[str, Any]) -> list[dict[str, str]]:
    found = list(schema.get(RULES_KEY, ()))
    for child in (*schema.get("properties", {}).values(), schema.get("items")):
        found += _rules(child) if isinstance(child, dict) else []
    return found


@pytest.mark.parametrize("kind", ["KVServing", "KVRollbackPolicy", "KVTrial"])
def test_every_rule_and_message_compiles(kind: str) -> None:
    found = _rules(dict(check.schemas()[kind]))
    assert found
    for rule in found:
        if rules.OLD not in rule["rule"]:
            assert rules.compiled(rule["rule"])
        if rule.get("messageExpression"):
            assert rules.compiled(rule["messageExpression"])


def said(text: str) -> list[str]:
    found: list[str] = []
    for each in parse("a.yaml", text):
        found += [str(each)] if isinstance(each, Fault) else [str(f) for f in check.faults(each)]
    return found


def test_a_fault_names_file_line_object_field_what_was_expected_and_what_came() -> None:
    text = GOOD + "    maxNumSeqs: 0\n    extraArgs: ['--ok', 'nope']\n"
    assert [
        "a.yaml:11: KVServing/chat: spec.engine.maxNumSeqs: expected at least 1, got 0"
    ] == said(text)
    text = GOOD + "    maxNumSeqs: 1\n    extraArgs: ['--ok',\n      'nope']\n"
    assert [
        "a.yaml:13: KVServing/chat: spec.engine.extraArgs[1]: expected one flag of the form --flag "
        'or --flag=value, got "nope"'
    ] == said(text)


@pytest.mark.parametrize(
    ("addition", "told"),
    [
        ("  kvCach: {}\n", "spec.kvCach: no such field; did you mean kvCache?"),
        ("  tuning: {mode: Off}\n",
         "spec.tuning.mode: expected a text, got false (YAML reads a bare Off"),
        ("  replicas: two\n", 'spec.replicas: expected a whole number, got "two"'),
        ("  kvCache: {dtype: int5}\n", "spec.kvCache.dtype: expected one of auto, bfloat16"),
        ("  tuning: {knobs: []}\n", "spec.tuning.knobs: expected at least 1 entries, got 0"),
        ("  rollbackPolicyRef: {}\n", "spec.rollbackPolicyRef.name: is required"),
        ("  replicas: 1\n  replicas: 2\n", "spec.replicas: stands twice"),
        ("  podTemplate: {env: [{name: A}, {name: A}]}\n",
         "spec.podTemplate.env: expected entries that differ in their name"),
        ("  model: {uri: s3://x/y}\n", "spec.model: stands twice"),
        ("  podTemplate: {resources: {limits: {memory: 9223372036854775808}}}\n",
         "spec.podTemplate.resources.limits.memory: expected a whole number of 64 bits, or a text"),
        ("  kvCache: []\n", "spec.kvCache: expected a mapping, got []"),
    ],
)  # fmt: skip
def test_each_kind_of_fault_is_told_at_its_line(addition: str, told: str) -> None:
    found = said(GOOD + addition)
    assert told in found[0], found
    line = len(GOOD.splitlines()) + len(addition.splitlines())
    assert found[0].startswith(f"a.yaml:{line}: KVServing/chat: ")


def test_what_is_missing_is_told_at_the_line_of_what_it_should_be_in() -> None:
    text = GOOD.replace("    uri: pvc://models/tiny\n", "    name: tiny\n")
    assert ["a.yaml:6: KVServing/chat: spec.model.uri: is required"] == said(text)


def test_documents_lists_and_json_have_their_own_lines() -> None:
    second = GOOD.replace("chat", "rag").replace("64Mi", "1Ki")
    found = said(f"# first\n---\n{GOOD}---\n{second}")
    assert len(found) == 1
    assert found[0].startswith("a.yaml:22: KVServing/rag: spec.engine.kvCacheMemory: ")
    items = yaml.safe_dump_all([{"kind": "List", "items": [yaml.safe_load(second)]}])
    assert "KVServing/rag: spec.engine.kvCacheMemory" in said(items)[0]
    assert "kvCacheMemory" in said(json.dumps(yaml.safe_load(second), indent=1))[0]


@pytest.mark.parametrize(
    "text",
    [
        "a: [", "a: b: c", "\t- x", "- a\n- b", "text", "{a: *nowhere}", "a: !!python/none x",
        "? [a]\n: b", "a: &x {b: *x}", "!!set {a}", "a: 2026-13-45", "kind: 5", "\x00",
        "apiVersion: kvserving.dev/v1alpha1\nkind: {}\n",
        "apiVersion: kvserving.dev/v1\nkind: KVServing\n",
        "apiVersion: kvserving.dev/v1alpha1\nkind: KVServings\n",
        "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: 5\nspec: 7\n",
        "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: 5}\nspec: []\n",
        "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: a}\n"
        "spec: {engine: 3, model: 4, 5: 6}\n",
        "apiVersion: kvserving.dev/v1alpha1\nkind: KVTrial\nmetadata: {name: a}\n"
        "spec: {change: {}, servingRef: []}\n",
        "a: " + "[" * 300,
        "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
            f"{chr(99 + i)}: &{chr(99 + i)} [*{chr(98 + i)}, *{chr(98 + i)}]\n" for i in range(20)
        ),
    ],
)  # fmt: skip
def test_garbage_is_told_and_never_crashes(text: str) -> None:
    found = list(parse("a.yaml", text))
    for each in found:
        if isinstance(each, Document) and check.is_ours(each):
            assert list(check.faults(each))


def test_the_command_tells_valid_from_faulty(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "other.yaml").write_text("apiVersion: v1\nkind: Service\nmetadata: {name: x}\n")
    (tmp_path / "notes.txt").write_text("not looked at")
    ran = Ran(demo())
    assert "1 valid, none faulty, 1 of other kinds left alone" in ran("validate", str(tmp_path))
    (tmp_path / "bad.yaml").write_text(GOOD.replace("64Mi", "64Qi"))
    ran = Ran(demo())
    with pytest.raises(Faulty):
        ran("validate", "-f", str(tmp_path), "-o", "json")
    answer = json.loads(ran.out)
    assert not answer["valid"]
    (fault,) = answer["faults"]
    assert ("spec.engine.kvCacheMemory", 9) == (fault["field"], fault["line"])


def test_files_have_to_be_named_and_readable(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected files"):
        Ran(demo())("validate")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        Ran(demo())("validate", str(tmp_path / "none.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="no UTF-8"):
        Ran(demo())("validate", str(tmp_path))


def test_the_examples_are_valid() -> None:
    with pytest.raises(UsageError, match="-R looks into the folders"):
        Ran(demo())("validate", str(ROOT / "examples"))
    out = Ran(demo())("validate", "-R", str(ROOT / "examples"))
    assert "none faulty" in out
    assert not out.startswith("0 valid")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A model with 2 x 4 x 64 x 2 bytes x 8 layers = 8 KiB a token in 16 bits."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "llama", "num_hidden_layers": 8, "num_attention_heads": 8,
                "num_key_value_heads": 4, "head_dim": 64, "hidden_size": 512,
                "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
            }
        )
    )  # fmt: skip
    return path


def test_a_cache_that_holds_no_request_is_told_with_what_would_do(
    tmp_path: Path, config: Path
) -> None:
    text = GOOD.replace("64Mi", "6Mi") + "  tuning: {allowedDtypes: [auto, int4]}\n"
    (tmp_path / "a.yaml").write_text(text)
    ran = Ran(demo())
    with pytest.raises(Faulty):
        ran("validate", str(tmp_path / "a.yaml"), "--config", str(config))
    assert ":9: KVServing/chat: spec.engine.kvCacheMemory: expected room for one request" in ran.out
    assert "1024 tokens" in ran.out
    assert "got 6Mi" in ran.out
    assert "int4 would fit" in ran.out
    assert "0 valid, 1 faulty" in ran.out


def test_the_capacity_is_the_plans(tmp_path: Path, config: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    ran = Ran(demo())
    ran("validate", str(tmp_path / "a.yaml"), "--config", str(config), "-o", "json")
    ((fit,),) = json.loads(ran.out)["capacity"].values()
    # 64 MiB are 8,192 tokens of 8 KiB; one block of 16 is kept back, so seven requests fit.
    assert fit == {
        "dtype": "auto", "bytesPerToken": 8192, "contextTokens": 1024, "sequences": 7,
        "tokens": 8192,
    }  # fmt: skip


def test_on_a_gpu_the_cache_is_what_the_share_of_its_memory_leaves(
    tmp_path: Path, config: Path
) -> None:
    def tokens(percent: int) -> int:
        text = GOOD.replace("kvCacheMemory: 64Mi", "accelerator: NVIDIA")
        text += f"    gpuMemoryUtilizationPercent: {percent}\n"
        (tmp_path / "a.yaml").write_text(text)
        ran = Ran(demo())
        more = ["--config", str(config), "--gpu", "L4", "--weights-gib", "2", "-o", "json"]
        ran("validate", str(tmp_path / "a.yaml"), *more)
        ((fit,),) = json.loads(ran.out)["capacity"].values()
        return int(fit["tokens"])

    # 40 % of 23,034 MiB at 8 KiB a token.
    assert tokens(90) - tokens(50) == pytest.approx(23_034 * 0.4 * 128, rel=0.01)


def test_on_a_gpu_the_size_of_the_weights_has_to_be_known(tmp_path: Path, config: Path) -> None:
    text = GOOD.replace("kvCacheMemory: 64Mi", "accelerator: NVIDIA")
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(SizingError, match="weights-gib"):
        Ran(demo())("validate", str(tmp_path / "a.yaml"), "--config", str(config), "--gpu", "L4")
