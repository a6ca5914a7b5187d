"""What the loop costs beside an engine: memory, and what it does not load."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from kvserving_tuner.live import Loop
from kvserving_tuner.recording import Recorder
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.simulator.world import World
from tunerkit.simulated import engine, requests

MIB_KIB = 1024
SECONDS = 420

LOOP = """
import json
import sys
from importlib.metadata import entry_points
from pathlib import Path

# As `kvserving tune`: all commands are loaded, whichever is asked for.
for entry in entry_points(group="kvserving.commands"):
    entry.load()

from kvserving_tuner.commands.replay import replay
from kvserving_tuner.settings import Mode, TuningSettings

decisions = sum(1 for _ in replay(Path(sys.argv[1]), TuningSettings(mode=Mode.AUTO)))
# Of this program alone: what it was forked from counts elsewhere.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "decisions": decisions,
    "most_kib": int(status["VmHWM"].split()[0]),
    "loaded": sorted({name.split(".")[0] for name in sys.modules}),
}))
"""


def test_decisions_take_less_than_100_mib_and_load_nothing_heavy(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    recorder = Recorder(log)
    world = World({"a": engine(requests(rate=1.5, seconds=SECONDS))})
    server = world.servers["a"]

    async def turns() -> None:
        settings = TuningSettings(mode=Mode.AUTO)
        loop = Loop(world.targets, world.source, world.runtime, world.actuator, settings)
        for at in range(5, SECONDS, 5):
            recorder.saw({"a": server.read(world.started + at)})
            recorder.wrote(await loop.turn(world.started + at))

    asyncio.run(turns())
    recorder.close()
    ended = subprocess.run(
        [sys.executable, "-c", LOOP, str(log)], capture_output=True, text=True, check=True
    )
    found = json.loads(ended.stdout)
    assert found["decisions"] == 83
    assert found["most_kib"] < 100 * MIB_KIB
    heavy = {"torch", "pandas", "plotly", "matplotlib", "gguf", "vllm", "triton"}
    assert heavy & set(found["loaded"]) == set()
