"""Metrics of several API servers, which share one engine core and a folder of files."""

import json
import os
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from kvserving_kernels.plugin.metrics import COUNTED, SHARED

SHOW = """
import json, sys
from prometheus_client import CollectorRegistry
from kvserving_kernels.plugin.metrics import RuntimeMetrics

metrics = RuntimeMetrics(CollectorRegistry())
for document in json.loads(sys.argv[1]):
    metrics.show(document)
metrics.count_change("kv_cache_dtype", "Applied")
"""


def document(dtype: str, count: int) -> dict[str, object]:
    """A runtime document in which everything was counted so often."""
    return {
        "effective": {
            "kv_cache_dtype": dtype,
            "eviction": {"policy": "None"},
            "max_active_seqs": 8,
        },
        "capacity": {"block_size": 64},
        "counters": dict.fromkeys(COUNTED, count),
    }


def test_what_the_core_counts_is_shown_once_however_many_servers_show_it(tmp_path: Path) -> None:
    seen: tuple[list[dict[str, object]], ...] = (
        [document("auto", 1), document("int8", 3)],
        [document("int8", 2)],
        [],
    )
    for documents in seen:
        subprocess.run(
            [sys.executable, "-c", SHOW, json.dumps(documents)],
            env={**os.environ, SHARED: str(tmp_path)},
            check=True,
        )
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
    for name in COUNTED:
        assert registry.get_sample_value(f"kvserving:{name}_total") == 3
    # What a server counts itself is added up.
    labels = {"knob": "kv_cache_dtype", "result": "Applied"}
    assert registry.get_sample_value("kvserving:changes_total", labels) == len(seen)
