"""`tune`, `replay` and `explain`: what is changed on a server, decided again, and said of it."""

import argparse
import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvserving_tuner.cli import main
from kvserving_tuner.commands.options import add_ladder, ladder_settings
from kvserving_tuner.commands.replay import replay
from kvserving_tuner.commands.tune import read_state, write_state
from kvserving_tuner.decision import Action, Change, Knob, Reason, RungName
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.live import Loop, Turn
from kvserving_tuner.recording import Recorder, recorded
from kvserving_tuner.remembered import Judged, Sample, Watch
from kvserving_tuner.rules import Ability, Strategy
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.screening import Screened
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.simulator.world import World
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.state import TunerState
from tunerkit import expositions
from tunerkit.servers import MetricsServer
from tunerkit.simulated import engine, requests

TRIED = TuningSettings(
    mode=Mode.AUTO,
    abilities={Knob.KV_CACHE_DTYPE: Ability.TRIAL},
    allowed_dtypes=("fp8_e4m3", "k8v4"),
)


class Gate:
    """Gives verdicts on formats, and counts how often it is asked."""

    def __init__(self, verdicts: dict[str, Screened]) -> None:
        self.verdicts = verdicts
        self.asked: list[str] = []

    async def screen(self, targets: Sequence[EngineTarget], change: Change) -> Screened:
        """Answer after a while."""
        self.asked.append(str(change.to_value))
        await asyncio.sleep(0)
        return self.verdicts[str(change.to_value)]


PASSED = Screened(True, False, "within its bound")
REJECTED = Screened(False, True, "3 % worse")
NOT_ASKED = Screened(False, False, "no answer")


def tuned(gate: Gate, seconds: float) -> tuple[list[Turn], Loop, str]:
    """The loop on an engine whose cache binds."""
    simulated = engine(requests(rate=1.5, seconds=seconds))
    world = World({"a": simulated})
    loop = Loop(world.targets, world.source, world.runtime, world.actuator, TRIED, gate=gate)

    async def turns() -> list[Turn]:
        found = []
        for at in range(5, int(seconds), 5):
            found.append(await loop.turn(world.started + at))
            await asyncio.sleep(0)
        await loop.close()
        return found

    return asyncio.run(turns()), loop, simulated.dtype


def test_a_format_is_screened_before_it_is_set() -> None:
    gate = Gate({"fp8_e4m3": PASSED, "k8v4": PASSED})
    turns, loop, dtype = tuned(gate, 1000)
    asked = next(turn for turn in turns if turn.decision.action is Action.TRIAL)
    made = [
        turn.decision for turn in turns
        if turn.decision.action is Action.CHANGE
        and turn.decision.change is not None
        and turn.decision.change.knob is Knob.KV_CACHE_DTYPE
    ]  # fmt: skip
    assert gate.asked[0] == "fp8_e4m3"
    assert [d.change.to_value for d in made[:1] if d.change] == ["fp8_e4m3"]
    assert asked.decision.at < made[0].at
    assert dtype != "bfloat16"
    assert loop.state.asked is None


def test_a_format_that_fails_its_screening_is_never_set() -> None:
    gate = Gate({"fp8_e4m3": REJECTED, "k8v4": REJECTED})
    turns, loop, dtype = tuned(gate, 1500)
    assert dtype == "bfloat16"
    assert gate.asked == ["fp8_e4m3", "k8v4"]
    judged = {(each.value, each.judged) for each in loop.state.tried}
    assert judged == {("fp8_e4m3", Judged.FAILED), ("k8v4", Judged.FAILED)}
    assert [turn.screened for turn in turns if turn.screened] == [REJECTED, REJECTED]


def test_an_engine_that_could_not_be_asked_is_asked_again() -> None:
    gate = Gate({"fp8_e4m3": NOT_ASKED})
    _, loop, dtype = tuned(gate, 700)
    assert dtype == "bfloat16"
    assert len(gate.asked) > 1
    assert loop.state.tried == ()


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_ladder(parser)
    return parser.parse_args(arguments)


def test_options_are_settings() -> None:
    given = options(
        "--dtype", "int8", "--rules", "--ttft-ms", "500", "--maximum", "32", "--changes-per-day",
        "3", "--window", "02:00+120",
    )  # fmt: skip
    found = ladder_settings(given, Mode.AUTO, Ability.TRIAL)
    assert found.allowed_dtypes == ("int8",)
    assert found.ladder.strategy is Strategy.RULES
    assert found.slo.ttft_ms == 500
    assert found.guardrails.changes_per_day == 3
    assert found.guardrails.windows[0].minutes == 120
    assert found.ability(Knob.KV_CACHE_DTYPE) is Ability.TRIAL
    assert found.ability(Knob.WATERMARK_PERCENT) is Ability.RECOMMEND
    kept = ladder_settings(options("--no-dtypes"), Mode.AUTO, Ability.TRIAL)
    assert kept.allowed_dtypes == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--window", "02:00"), "--window: expected HH:MM"),
        (("--window", "25:00+9"), "expected HH:MM"),
        (("--minimum", "9", "--maximum", "3"), "maximum"),
        (("--ttft-ms", "-1"), "ttft_ms"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        ladder_settings(options(*arguments), Mode.AUTO, Ability.TRIAL)


def test_the_memory_survives_a_restart_and_nonsense_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert read_state(None) == read_state(path) == TunerState()
    write_state(path, TunerState(cap=7))
    assert read_state(path).cap == 7
    path.write_text("{")
    with pytest.raises(SettingsError):
        read_state(path)
    with pytest.raises(SettingsError, match="--state"):
        write_state(tmp_path / "no" / "state.json", TunerState())


@pytest.fixture(scope="module", params=["log.jsonl", "log.jsonl.gz"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven minutes of a loop that may move the cap alone."""
    path = tmp_path_factory.mktemp("log") / str(request.param)
    recorder = Recorder(path)
    simulated = engine(requests(rate=1.5, seconds=420))
    world = World({"a": simulated})
    server = world.servers["a"]

    async def turns() -> None:
        loop = Loop(
            world.targets, world.source, world.runtime, world.actuator,
            TuningSettings(mode=Mode.AUTO),
        )  # fmt: skip
        for at in range(5, 420, 5):
            now = world.started + at
            recorder.saw({"a": server.read(now)})
            recorder.wrote(await loop.turn(now))

    asyncio.run(turns())
    recorder.close()
    return path


def test_a_log_is_decided_on_again_to_the_same_end(log: Path) -> None:
    found = list(replay(log, TuningSettings(mode=Mode.AUTO)))
    assert len(found) == 83
    for decision, before in found:
        assert json.loads(json.dumps(decision.to_dict())) == before
    assert any(decision.action is Action.CHANGE for decision, _ in found)


def test_other_settings_decide_otherwise(log: Path) -> None:
    settings = TRIED.model_copy(update={"abilities": {Knob.KV_CACHE_DTYPE: Ability.CHANGE}})
    knobs = {d.change.knob for d, _ in replay(log, settings) if d.change is not None}
    assert Knob.MAX_ACTIVE_SEQS in knobs
    off = [d for d, _ in replay(log, TuningSettings(mode=Mode.OFF))]
    assert {d.reason for d in off} == {Reason.MODE_OFF}


def test_what_was_read_comes_back_as_it_was(log: Path) -> None:
    first = next(iter(recorded(log)))
    assert isinstance(first.runtime[0], RuntimeState)
    assert first.runtime[0].effective.kv_cache_dtype == "bfloat16"
    assert first.read["a"].scrapes[0].engine_samples > 10


def test_a_log_that_is_cut_off_is_read_to_there(log: Path, tmp_path: Path) -> None:
    cut = tmp_path / log.name
    text = (gzip.decompress(log.read_bytes()) if log.suffix == ".gz" else log.read_bytes()).decode()
    part = text[: int(len(text) * 0.6)]
    cut.write_bytes(gzip.compress(part.encode()) if log.suffix == ".gz" else part.encode())
    assert 40 < len(list(recorded(cut))) < 60


def test_replay_says_what_is_otherwise(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(log), "--maximum", "8"]) == 0
    shown = capsys.readouterr().out
    assert "83 turns" in shown
    assert "PreemptionStorm" in shown
    assert main(["replay", str(log), "--output", "json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["recorded"]["action"] == "Hold"


def test_explain_tells_the_last_decision_that_acted(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "Decided: Change" in shown
    assert "Change: MaxActiveSeqs from" in shown
    assert "Rung: ActiveCap, risk Reversible" in shown
    assert "Configuration: nothing is known to be wrong" in shown
    assert "running_mean" in shown


def test_explain_finds_a_decision_by_its_id_in_an_operators_log(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = dict(next(iter(recorded(log))).decision)
    mixed = tmp_path / "operator.log"
    mixed.write_text(
        "starting\n2026-01-01 INFO kvserving.audit " + json.dumps(document) + '\n{"other": 1}\n'
    )
    assert main(["explain", str(mixed), "--id", document["id"][:8]]) == 0
    assert f"Decision {document['id']}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["replay", "explain"])
def test_what_is_no_log_is_said_to_be_none(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    path.write_text('text\n{"a": 1}\n')
    assert main([command, str(path)]) == 2
    assert "expected" in capsys.readouterr().err
    assert main([command, str(tmp_path / "missing")]) == 2


def test_a_broken_observation_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{}\n{"schema": "kvserving.dev/observation/v1", "at": 1}\n')
    with pytest.raises(SettingsError, match="line 2 is no observation"):
        list(recorded(path))


def test_tune_prints_audit_lines_and_keeps_log_and_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_file, state = tmp_path / "log.jsonl", tmp_path / "state.json"
    with MetricsServer() as server:
        server.text = expositions.recorded(0)
        given = ["tune", "--engine", server.url, "--turns", "2", "--interval", "0.01", "--json"]
        assert main([*given, "--record", str(log_file), "--state", str(state)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert {line["action"] for line in lines} == {"Hold"}
    assert len(list(recorded(log_file))) == 2
    assert isinstance(read_state(state), TunerState)


def test_tune_names_a_variable_that_is_not_set(capsys: pytest.CaptureFixture[str]) -> None:
    given: list[Any] = ["tune", "--engine", "http://x", "--token-env", "NO_SUCH_VARIABLE"]
    assert main(given) == 2
    assert "NO_SUCH_VARIABLE is not set" in capsys.readouterr().err


async def test_a_rollback_that_an_engine_refuses_is_tried_again_and_nothing_else_happens() -> None:
    world = World({"a": engine(requests(rate=0.1, seconds=300))})
    sample = Sample(
        at=0, goodput=1, missed=None, tokens_per_second=1e9, waiting=1, running=8,
        preemptions_per_second=0, finished=60,
    )  # fmt: skip
    watch = Watch(
        rung=RungName.MIXED_CACHE, knob=Knob.KV_CACHE_DTYPE, from_value="int3",
        to_value="bfloat16", at=world.started - 9999, regime="", before=(sample,) * 5,
    )  # fmt: skip
    settings = TRIED.model_copy(update={"abilities": {Knob.KV_CACHE_DTYPE: Ability.CHANGE}})
    loop = Loop(
        world.targets, world.source, world.runtime, world.actuator, settings,
        TunerState(watch=watch, start_kv_cache_dtype="bfloat16"),
    )  # fmt: skip
    for at in (5, 10, 15):
        turn = await loop.turn(world.started + at)
        assert turn.decision.reason is Reason.ROLLED_BACK
        assert turn.applied is not None
        assert not turn.applied.states
        assert loop.state.watch == watch
        assert loop.state.tried == ()
