"""Probe sets in ConfigMaps and Secrets: prompts, or a problem that gives nothing away."""

import base64
from typing import Any

import pytest

from kvserving_operator.api.v1alpha1 import ProbeSetKind, ProbeSetReference
from kvserving_operator.trials.probe_set import parse_probe_set

SECRET = ProbeSetKind.SECRET


def parsed(kind: ProbeSetKind, text: str, key: str = "prompts.jsonl") -> tuple[int, str]:
    stored = base64.b64encode(text.encode()).decode() if kind is SECRET else text
    body: dict[str, Any] = {"data": {key: stored}}
    found = parse_probe_set(ProbeSetReference(kind=kind, name="probes"), body)
    return len(found.prompts), found.problem


@pytest.mark.parametrize("kind", list(ProbeSetKind))
def test_prompts_are_read(kind: ProbeSetKind) -> None:
    assert parsed(kind, '{"prompt": "a"}\n{"prompt": "b"}') == (2, "")


def test_a_fault_in_a_config_map_is_told_in_full() -> None:
    _, problem = parsed(ProbeSetKind.CONFIG_MAP, '{"prompt": "a"}\n{"text": "b"}')
    assert problem == (
        "spec.quality.probeSet: ConfigMap probes: line 2: text: "
        "expected one of name, prompt, messages, reference, metric"
    )
    _, problem = parsed(ProbeSetKind.CONFIG_MAP, "", key="others")
    assert problem.endswith("no key prompts.jsonl, expected one of others")


@pytest.mark.parametrize(
    "text",
    [
        '{"hunter2": 1}',
        "hunter2",
        '{"prompt": 1, "name": "hunter2"}',
        '{"messages": [{"role": "hunter2", "content": ""}]}',
    ],
)
def test_a_fault_in_a_secret_gives_nothing_away(text: str) -> None:
    count, problem = parsed(SECRET, text)
    assert (count, problem) == (0, "spec.quality.probeSet: Secret probes: line 1 is no prompt")
    _, problem = parsed(SECRET, text, key="hunter2")
    assert "hunter2" not in problem


def test_what_is_no_text_is_said() -> None:
    reference = ProbeSetReference(kind=SECRET, name="probes")
    stored = base64.b64encode(b"\xff\xfe").decode()
    assert (
        "expected text in UTF-8"
        in parse_probe_set(reference, {"data": {"prompts.jsonl": stored}}).problem
    )
