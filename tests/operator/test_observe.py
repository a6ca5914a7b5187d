"""What is read off pods, and the one line of a crash that tells the cause."""

from typing import Any

import pytest

from kvserving_operator.observe import (
    CheckState,
    check_view,
    last_words,
    pod_view,
    refusal,
    spec_field,
)

VLLM_CRASH = """\
(EngineCore pid=40) ERROR 11-29 20:00:00 [core.py:800] EngineCore failed to start.
(EngineCore pid=40) Traceback (most recent call last):
(EngineCore pid=40)   File "core.py", line 791, in run_engine_core
(EngineCore pid=40) ValueError: Unsupported head size 33
Traceback (most recent call last):
  File "/usr/bin/vllm", line 8, in <module>
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p", "uid": "u", "creationTimestamp": "2026-11-29T20:00:00Z", "labels": {},
        },
        "spec": {"containers": [{"name": "engine"}]},
        "status": status,
    }  # fmt: skip


def test_the_cause_of_a_crash_is_found() -> None:
    assert last_words(VLLM_CRASH).endswith("ValueError: Unsupported head size 33")
    assert "vllm: error: unrecognized arguments: --x" == last_words(
        "usage: vllm serve [options]\nvllm: error: unrecognized arguments: --x\n"
    )
    assert "Killed" == last_words("loading weights\nKilled\n")
    assert "no message" == last_words("\n")


def test_a_refusal_is_told_from_a_crash() -> None:
    line = '{"ok":false,"field":"--kv-cache-dtype","reason":"x","message":"int4 is not supported"}'
    assert "spec.kvCache.dtype: --kv-cache-dtype: int4 is not supported" == refusal(
        f"INFO some log\n{line}\n"
    )
    assert "spec.engine.extraArgs: --x is unknown" == refusal(
        '{"ok":false,"field":"--x","message":"--x is unknown"}'
    )
    assert refusal("Traceback\nImportError: no module\n") is None
    assert refusal('{"ok":true}') is None
    assert refusal("[1, 2]") is None


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("--kv-cache-memory-bytes", "spec.engine.kvCacheMemory"),
        ("--max-model-len", "spec.engine.maxModelLen"),
        ("--enforce-eager", "spec.engine.extraArgs"),
        ("--port", None),
        ("model", "spec.model.uri"),
        ("accelerator", "spec.engine.accelerator"),
        ("kvserving.eviction.window_tokens", "spec.kvCache.eviction"),
        ("kvserving.kv_cache_dtype", "spec.kvCache.dtype"),
        ("VLLM_CPU_KVCACHE_SPACE", "spec.podTemplate.env"),
        ("", None),
    ],
)
def test_what_a_check_names_is_said_as_the_field_that_a_user_sets(
    field: str, asked: str | None
) -> None:
    assert spec_field(field) == asked


def test_a_fresh_pod_has_no_surprises() -> None:
    view = pod_view(pod())
    assert not view.ready
    assert 0 == view.terminations
    assert view.ip is None
    assert view.unschedulable is None


def test_crashes_are_counted_across_restarts() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    container = {"name": "engine", "restartCount": 0, "state": ended}
    view = pod_view(pod(containerStatuses=[container]))
    assert 1 == view.terminations
    assert view.last_exit is not None
    assert view.last_exit.out_of_memory
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    container = {"name": "engine", "restartCount": 4, "state": waiting, "lastState": ended}
    assert 4 == pod_view(pod(containerStatuses=[container])).terminations


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"phase": "Pending"}, CheckState.WAITING),
        (
            {
                "phase": "Running",
                "containerStatuses": [{"name": "preflight", "state": {"running": {}}}],
            },
            CheckState.RUNNING,
        ),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, CheckState.FINISHED),
        ({"phase": "Failed", "reason": "Evicted", "message": "node pressure"}, CheckState.FINISHED),
    ],
)
def test_where_a_check_pod_stands(status: dict[str, Any], state: CheckState) -> None:
    view = check_view(pod(**status))
    assert state is view.state
    assert (state is CheckState.FINISHED) == (view.exit is not None)
