"""Tasks that engines are asked: what comes back of those that they fail."""

import asyncio
from collections.abc import Mapping

import httpx
import pytest

from kvserving_operator.trials.asking import Answer, Ask, Asking
from kvserving_tuner.probes.client import ProbeClient
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.trials.tasks import Cell

WORDS = {"choices": [{"text": "?"}]}
FAILS = httpx.Response(500, json={"error": {"message": "boom", "code": 500}})


async def answer(answers: Mapping[str, httpx.Response | Exception], tokenized: int = 200) -> Answer:
    """What one task comes to, where engines `a` and `b` answer completions so."""

    def engine(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/tokenize":
            return httpx.Response(tokenized, json={"tokens": list(range(500))})
        found = answers[request.url.host]
        if isinstance(found, Exception):
            raise found
        return found

    candidate, baseline = (EngineTarget(name, f"http://{name}") for name in ("a", "b"))
    ask = Ask(
        "trial", 0, Cell(Probe.STRUCTURED_OUTPUT, 512), 0, "m", 32, candidate, baseline, busy=False
    )
    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        asking = Asking(ProbeClient(http))
        asking.ask([ask])
        for _ in range(200):
            await asyncio.sleep(0)
            found = asking.collect()
            if found:
                return found[0]
    raise AssertionError("no answer")


async def test_what_both_engines_answer_is_graded() -> None:
    ok = httpx.Response(200, json=WORDS)
    found = await answer({"a": ok, "b": ok})
    assert (found.grade, found.baseline, found.error, found.failed) == (0, 0, "", ())


@pytest.mark.parametrize(("text", "is_garbage"), [("", True), ("?", True), (" not that", False)])
async def test_an_answer_that_is_none_is_told_from_a_wrong_one(text: str, is_garbage: bool) -> None:
    said, ok = ({"choices": [{"text": each}]} for each in (text, " at noon"))
    found = await answer({"a": httpx.Response(200, json=said), "b": httpx.Response(200, json=ok)})
    assert (found.grade, found.is_garbage) == (0, is_garbage)
    # What the engine in 16 bits says, alone or too, is not the change's doing.
    for first in (ok, said):
        both = {"a": httpx.Response(200, json=first), "b": httpx.Response(200, json=said)}
        assert not (await answer(both)).is_garbage


@pytest.mark.parametrize(
    ("failing", "failed"),
    [
        ({"a": FAILS}, ("a",)),
        ({"b": httpx.Response(503, text="busy")}, ("b",)),
        ({"a": FAILS, "b": FAILS}, ("a", "b")),
        # The engine does not count what it never answered, nor what was asked wrongly.
        ({"a": httpx.ConnectError("refused")}, ()),
        ({"a": httpx.ReadTimeout("late")}, ()),
        ({"a": httpx.Response(400, json={"error": {"message": "no"}})}, ()),
    ],
)
async def test_engines_that_fail_a_task_are_told(
    failing: Mapping[str, httpx.Response | Exception], failed: tuple[str, ...]
) -> None:
    ok = httpx.Response(200, json=WORDS)
    found = await answer({"a": ok, "b": ok, **failing})
    assert found.error
    assert found.grade is None
    assert found.failed == failed


async def test_what_fails_before_the_task_is_asked_is_no_request_to_the_api() -> None:
    found = await answer({}, tokenized=500)
    assert found.error
    assert found.failed == ()
