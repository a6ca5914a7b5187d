"""What 4-bit keys cost in quality where they are quantized per token instead of per channel.

No format of the package has 4-bit keys per token; here `int4` and `int4_hadamard` get them, and
everything else stays as it is: the served cache, the operations, the text. One engine for each
grouping. Options are those of format_quality.py, which scores. Run with the Python of an engine
environment:

    python benchmarks/k_grouping.py --model SmolLM2-135M-Instruct --text prose.txt
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import envelope
import format_quality

from kvserving_kernels.formats import LAYOUTS, KGrouping, KVCacheDType

FORMATS = ("auto", "int4", "int4_hadamard")
GROUPING = "KVSERVING_BENCHMARK_K_GROUPING"
"""Tells a process which grouping it scores; without it a process starts one for each."""
RESULTS = envelope.ROOT / "benchmarks/results/k_grouping.json"


def main() -> None:
    """Score both groupings and write their rows side by side."""
    grouping = os.environ.get(GROUPING)
    if grouping is not None:
        _regroup(KGrouping[grouping])
        format_quality.main()
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for member in KGrouping:
            out = Path(folder) / f"{member.name}.json"
            command = [sys.executable, *sys.argv, "--formats", *FORMATS, "--out", str(out)]
            subprocess.run(command, env={**os.environ, GROUPING: member.name}, check=True)
            found = json.loads(out.read_text())["rows"]
            rows += [{"k_grouping": member.value, **row} for row in found]
    envelope.write(RESULTS, rows)


def _regroup(grouping: KGrouping) -> None:
    # Backends take their layout from here when they are imported, which an engine's start does.
    for dtype in map(KVCacheDType, FORMATS[1:]):
        LAYOUTS[dtype] = replace(LAYOUTS[dtype], k_grouping=grouping)


if __name__ == "__main__":
    main()
