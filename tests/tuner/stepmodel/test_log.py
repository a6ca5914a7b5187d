"""Step times corrected by the log of an engine whose own are known."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvserving_tuner.cli import main
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.live import Loop
from kvserving_tuner.recording import Recorder
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.simulator.world import World
from kvserving_tuner.stepmodel.log import applied, corrected_by_log, windows
from tunerkit.simulated import FORMATS, TIMES, engine, requests

SECONDS = 1500
SIZE = FORMATS["bfloat16"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A load that rises and falls, which nobody tunes."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    recorder = Recorder(path)
    load = [
        request
        for part, rate in enumerate((0.2, 0.8, 0.4, 1.2, 0.3))
        for request in requests(rate, SECONDS / 5, seed=part, start=part * SECONDS / 5)
    ]
    world = World({"a": engine(load, cache_tokens=40_000)})
    server = world.servers["a"]

    async def turns() -> None:
        settings = TuningSettings(mode=Mode.RECOMMEND)
        loop = Loop(world.targets, world.source, world.runtime, world.actuator, settings)
        for at in range(5, SECONDS, 5):
            recorder.saw({"a": server.read(world.started + at)})
            recorder.wrote(await loop.turn(world.started + at))

    asyncio.run(turns())
    recorder.close()
    return path


def test_windows_do_not_overlap_and_show_the_load(log: Path) -> None:
    found = list(windows(log, TIMES, SIZE))
    assert 15 <= len(found) <= SECONDS / 60
    assert max(w.growing_seconds for w in found) > 2 * min(w.growing_seconds for w in found)


def test_times_that_are_right_stay_as_they_are(log: Path) -> None:
    found = corrected_by_log(log, TIMES, SIZE)
    assert found.is_trusted
    assert found.seconds(0.08, 0.005) == pytest.approx(0.085, rel=0.03)


@pytest.mark.parametrize("factor", [0.7, 1.5])
def test_times_that_are_wrong_come_near_the_engines(log: Path, factor: float) -> None:
    wrong = replace(TIMES, base_seconds=TIMES.base_seconds * factor)
    found = corrected_by_log(log, wrong, SIZE)
    better = applied(wrong, found)
    assert found.is_trusted
    assert better.base_seconds == pytest.approx(TIMES.base_seconds, rel=0.1)


def test_times_of_another_machine_are_not_trusted(log: Path) -> None:
    other = replace(TIMES, base_seconds=TIMES.base_seconds / 10)
    assert not corrected_by_log(log, other, SIZE).is_trusted


def test_simulate_takes_a_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = log.with_name("times.json")
    replace(TIMES, base_seconds=TIMES.base_seconds * 1.4).save(times)
    options = [
        "simulate", "--load", "azure-conversation", "--seconds", "20", "--capacity-tokens", "4000",
        "--bytes-per-token", "16", "--step-times", str(times), "--output", "json",
    ]  # fmt: skip
    assert main([*options, "--log", str(log)]) == 0
    found = json.loads(capsys.readouterr().out)["step_times"]
    assert found["base_seconds"] == pytest.approx(TIMES.base_seconds, rel=0.1)
    replace(TIMES, base_seconds=TIMES.base_seconds / 20).save(times)
    assert main([*options, "--log", str(log)]) == 2
    assert "log: expected at least 5 windows" in " ".join(capsys.readouterr().err.split())


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "none.jsonl"
    file.write_text("{}")
    with pytest.raises(SettingsError, match="expected observations"):
        corrected_by_log(file, TIMES, SIZE)
