"""`kvserving report`: one page that needs no network, from either log, safe whatever a log says."""

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kvserving_tuner.audit import audit_line
from kvserving_tuner.cli import main
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.live import Loop, Turn
from kvserving_tuner.recording import Recorder
from kvserving_tuner.report.history import read_history
from kvserving_tuner.report.page import page
from kvserving_tuner.report.plots import draw, label
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.simulator.world import World
from tunerkit.simulated import engine, requests

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Elements(HTMLParser):
    """Tags and attributes of a page, and its text outside of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.tags.append((tag, dict(attrs)))
        self._script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        """Leave a script."""
        self._script = self._script and tag != "script"

    def handle_data(self, data: str) -> None:
        """Keep what a reader sees."""
        if not self._script:
            self.text += data


def elements(text: str) -> Elements:
    parser = Elements()
    parser.feed(text)
    return parser


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recording and an audit log of seven minutes in which the cap is lowered."""
    folder = tmp_path_factory.mktemp("logs")
    recorder = Recorder(folder / "log.jsonl.gz")
    simulated = engine(requests(rate=1.5, seconds=420))
    world = World({"a": simulated})
    server = world.servers["a"]

    async def turns() -> list[Turn]:
        settings = TuningSettings(mode=Mode.AUTO)
        loop = Loop(world.targets, world.source, world.runtime, world.actuator, settings)
        found = []
        for at in range(5, 420, 5):
            now = world.started + at
            recorder.saw({"a": server.read(now)})
            found.append(await loop.turn(now))
            recorder.wrote(found[-1])
        return found

    made = asyncio.run(turns())
    recorder.close()
    audit = folder / "operator.log"
    lines = [audit_line(turn.decision, "demo/chat", turn.observation, "Applied") for turn in made]
    audit.write_text("\n".join(["not JSON", *lines]))
    return folder / "log.jsonl.gz", audit


def test_a_recording_has_figures_over_time(logs: tuple[Path, Path]) -> None:
    history = read_history(logs[0])
    assert history.turns == len(history.points) == 83
    names = (
        "kv_usage", "ttft_seconds", "tpot_seconds", "tokens_per_second", "running", "waiting",
        "cap", "preemptions_per_second",
    )  # fmt: skip
    assert all(history.has(name) for name in names)
    at, values = history.series("kv_usage")
    assert at == sorted(at)
    assert max(value for value in values if value is not None) <= 1
    # Nothing is known before there are two scrapes.
    assert history.series("ttft_seconds")[1][0] is None
    assert any(told.acted for told in history.decisions)
    assert sum(told.times for told in history.decisions) == 83


def test_an_audit_log_has_the_numbers_behind_decisions(logs: tuple[Path, Path]) -> None:
    history = read_history(logs[1])
    assert (history.name, history.turns) == ("demo/chat", 83)
    names = ("kv_usage", "running", "waiting", "tokens_per_second", "preemptions_per_second")
    assert all(history.has(name) for name in names)


def test_the_page_is_whole_and_loads_nothing(logs: tuple[Path, Path]) -> None:
    out = logs[0].with_name("page.html")
    assert main(["report", str(logs[0]), "--out", str(out), "--ttft-ms", "500"]) == 0
    found = elements(out.read_text())
    loading = [
        (tag, attributes)
        for tag, attributes in found.tags
        if attributes.get("src") or attributes.get("href") or tag in ("link", "iframe", "object")
    ]
    assert loading == []
    policies = [each for tag, each in found.tags if tag == "meta" and "content" in each]
    assert any("default-src 'none'" in str(each["content"]) for each in policies)
    assert len([1 for tag, _ in found.tags if tag == "div"]) >= 6
    for words in ("MaxActiveSeqs from", "PreemptionStorm", "83 looks"):
        assert words in found.text


def test_the_library_is_in_the_page_once(logs: tuple[Path, Path]) -> None:
    first, *others = draw(read_history(logs[0]))
    assert len(first) > 1_000_000
    assert others
    assert all(len(each) < 200_000 for each in others)
    # No button sends what is shown to somebody else's server.
    assert all('"modeBarButtons": [["toImage"' in each for each in (first, *others))


def test_the_page_is_beside_the_log_unless_another_place_is_named(logs: tuple[Path, Path]) -> None:
    assert main(["report", str(logs[0])]) == 0
    assert logs[0].with_name("log.html").exists()


def hostile(at: float, **more: Any) -> dict[str, Any]:
    return {
        "schema": "kvserving.dev/audit/v1",
        "serving": HOSTILE,
        "id": HOSTILE,
        "at": at,
        "diagnosis": {"kind": HOSTILE, "message": HOSTILE, "target": HOSTILE, "evidence": {}},
        "action": "Change",
        "change": {"knob": HOSTILE, "from": HOSTILE, "to": HOSTILE, "cost": HOSTILE},
        "reason": HOSTILE,
        "message": HOSTILE,
        "numbers": {"kv_usage_max": 0.5, "running_mean": HOSTILE, HOSTILE: HOSTILE},
        "case": {"rung": HOSTILE, "forecast": {"gain": HOSTILE, "low": 0.1, "high": HOSTILE}},
        "passed_over": [{"rung": HOSTILE, "why": HOSTILE}, HOSTILE],
        "outcome": HOSTILE,
        **more,
    }


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    log = tmp_path / "hostile.log"
    log.write_text("\n".join(json.dumps(hostile(float(at))) for at in range(3)))
    history = read_history(log)
    assert history.points[0].figures == {"kv_usage": 0.5}
    plots = draw(history)
    text = page(history, plots, 95)
    found = elements(page(history, [], 95))
    # Without plots a page has no script at all, and with them none but theirs.
    assert [tag for tag, _ in found.tags if tag in ("script", "img")] == []
    assert HOSTILE in found.text
    assert all("onerror" not in attributes for _, attributes in elements(text).tags)
    assert "<script>alert" not in text
    assert "onerror=alert(2)>" not in re.sub(r"&[a-z]+;", "", "".join(plots[1:]))


def test_labels_of_plots_have_no_markup_of_a_log() -> None:
    history_label = label(read_told())
    assert "<" not in history_label
    assert "&lt;" in history_label


def read_told() -> Any:
    from kvserving_tuner.report.history import Told

    return Told(0.0, hostile(0.0))


@pytest.mark.parametrize(
    "change",
    [
        {"diagnosis": "none", "change": "none", "numbers": [], "passed_over": 3, "case": []},
        {"diagnosis": None, "change": None, "numbers": None, "passed_over": None, "case": None},
        {"action": None, "message": None, "reason": None, "numbers": {"kv_usage_max": "NaN"}},
    ],
)
def test_a_line_of_another_shape_still_makes_a_page(tmp_path: Path, change: dict[str, Any]) -> None:
    log = tmp_path / "odd.log"
    log.write_text(json.dumps(hostile(1.0, **change)))
    assert "KVServing report" in page(read_history(log), [], 95)


def test_several_servings_are_asked_for_by_name(tmp_path: Path) -> None:
    log = tmp_path / "two.log"
    lines = [json.dumps(hostile(float(at), serving=f"demo/{at}")) for at in range(2)]
    log.write_text("\n".join(lines))
    with pytest.raises(SettingsError, match="--serving: expected one of demo/0, demo/1, got none"):
        read_history(log)
    with pytest.raises(SettingsError, match="got demo/2"):
        read_history(log, serving="demo/2")
    assert read_history(log, serving="demo/1").turns == 1


def test_what_is_no_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "none.log"
    log.write_text('{"schema": "other"}')
    assert main(["report", str(log)]) == 2
    assert "expected observations or audit lines" in " ".join(capsys.readouterr().err.split())
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert main(["report", str(log), "--percentile", "0"]) == 2
