"""The loop on a bare engine, and the command around it, against a model behind HTTP."""

import argparse
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from kvserving_tuner.actuators.runtime_api import RuntimeActuator
from kvserving_tuner.cli import main
from kvserving_tuner.commands.watch import configure
from kvserving_tuner.decision import Action, Reason
from kvserving_tuner.live import Loop, Turn
from kvserving_tuner.runtime_client import RuntimeClient
from kvserving_tuner.scrape import Sample
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.sources.direct import DirectSource
from tunerkit.engine import EngineModel, closed
from tunerkit.expositions import recorded
from tunerkit.servers import MetricsServer

START = 1000.0
TARGET = EngineTarget("http://engine:8000", "http://engine:8000", "secret")


def exposition(samples: list[Sample]) -> str:
    lines = []
    for sample in samples:
        labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
        lines.append(f"{sample.name}{{{labels}}} {sample.value}")
    return "\n".join(lines) + "\n"


class Served:
    """An engine model behind the two HTTP interfaces of an engine."""

    def __init__(self, plugin: bool = True) -> None:
        arrivals = closed(1, lambda now: 40, (100, 300), (100, 300))
        self.model = EngineModel(4000, 64, arrivals, step_seconds=0.15, started=START)
        self.plugin = plugin
        self.refuses = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        if request.url.path == "/metrics":
            ours = "kvserving:"
            shown = [s for s in self.model.samples() if self.plugin or not s.name.startswith(ours)]
            return httpx.Response(200, text=exposition(shown))
        if not self.plugin:
            return httpx.Response(404)
        if request.method == "PATCH":
            if self.refuses:
                return httpx.Response(422, json={"error": {"message": "not now"}})
            self.model.cap = json.loads(request.content)["max_active_seqs"]
        document = {
            "effective": {"kv_cache_dtype": "bfloat16", "max_active_seqs": self.model.cap},
            "envelope": {"max_active_seqs": {"minimum": 1, "maximum": 64}},
        }
        return httpx.Response(200, json=document)


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
async def build(served: Served) -> AsyncIterator[Callable[[Mode], Loop]]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(served)) as http:
        client = RuntimeClient(http)

        def make(mode: Mode) -> Loop:
            settings = TuningSettings(mode=mode)
            return Loop([TARGET], DirectSource(http), client, RuntimeActuator(client), settings)

        yield make


async def turns(loop: Loop, served: Served, count: int = 12) -> list[Turn]:
    taken: list[Turn] = []
    now = [START]

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        served.model.advance(now[0])

    await loop.run(taken.append, lambda: now[0], sleep, turns=count)
    return taken


async def test_a_bare_engine_is_tuned(build: Callable[[Mode], Loop], served: Served) -> None:
    taken = await turns(build(Mode.AUTO), served)
    applied = [turn for turn in taken if turn.applied is not None]
    assert applied
    assert applied[0].decision.reason is Reason.PREEMPTION_STORM
    assert served.model.cap < 20


async def test_without_apply_a_bare_engine_is_left_alone(
    build: Callable[[Mode], Loop], served: Served
) -> None:
    taken = await turns(build(Mode.RECOMMEND), served)
    assert served.model.cap == 64
    assert Action.RECOMMEND in {turn.decision.action for turn in taken}
    assert all(turn.applied is None for turn in taken)


async def test_a_refused_change_is_not_remembered(
    build: Callable[[Mode], Loop], served: Served
) -> None:
    served.refuses = True
    loop = build(Mode.AUTO)
    taken = await turns(loop, served)
    tried = [turn for turn in taken if turn.applied is not None]
    assert len(tried) > 1
    assert loop.state.last_change_at is None


async def test_an_engine_without_the_plugin_is_diagnosed(
    build: Callable[[Mode], Loop], served: Served
) -> None:
    served.plugin = False
    taken = await turns(build(Mode.AUTO), served)
    assert taken[-1].failures
    assert {turn.decision.action for turn in taken} == {Action.HOLD}
    assert Reason.NO_RUNTIME_API in {turn.decision.reason for turn in taken}


def test_the_command_prints_audit_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsServer() as server:
        server.text = recorded(0)
        options = ["--turns", "2", "--interval", "0.01", "--json"]
        assert main(["watch", "--engine", server.url, *options]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line["serving"] for line in lines] == [server.url] * 2
    assert {line["action"] for line in lines} == {"Hold"}


def test_the_command_shows_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsServer() as server:
        server.text = recorded(3)
        assert main(["watch", "--engine", server.url, "--turns", "1"]) == 0
    assert "engines" in capsys.readouterr().out


def test_a_token_variable_that_is_not_set_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--engine", "http://x", "--token-env", "NO_SUCH_VARIABLE"]) == 2
    assert "NO_SUCH_VARIABLE" in capsys.readouterr().err


def test_nothing_is_changed_unless_asked_for() -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    assert parser.parse_args(["--engine", "http://x"]).apply is False
