"""Metrics of every vLLM release, from one recording of 0.32.0 and the table of names.

The recording is real. Another release's exposition is derived from it: samples whose metric that
release does not register are left out, and quantities it registers under another name are renamed.
So names and presence are those of the release; labels, buckets and values are those of 0.32.0.
"""

import json
from functools import cache
from pathlib import Path

DATA = Path(__file__).parents[2] / "tests/tuner/data"
RECORDED = tuple(sorted((DATA / "expositions").glob("vllm_0.32.0_*.txt")))
SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_created")
RENAMED = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
}
"""Old names of the quantities that the recording has under their new ones."""


@cache
def table() -> dict[str, dict[str, list[list[str]]]]:
    """First and last releases of each run of releases that register a name, per generation."""
    names: dict[str, dict[str, list[list[str]]]] = _document()["names"]
    return names


@cache
def versions() -> tuple[str, ...]:
    """All releases of the table, oldest first."""
    return tuple(_document()["versions"])


@cache
def _document() -> dict:  # type: ignore[type-arg]
    return dict(json.loads((DATA / "vllm_metric_names.json").read_text()))


def registers(version: str, generation: str, name: str) -> bool:
    """Whether a release's engine generation (v0 or v1) registers a metric, _total or not."""
    order = versions()
    at = order.index(version)
    return any(
        order.index(first) <= at <= order.index(last)
        for registered in (name.removesuffix("_total"), name.removesuffix("_total") + "_total")
        for first, last in table().get(registered, {}).get(generation, [])
    )


def generations() -> list[tuple[str, str]]:
    """Every release with each engine generation that exports metrics in it."""
    return [
        (version, generation)
        for version in versions()
        for generation in ("v0", "v1")
        if registers(version, generation, "vllm:num_requests_running")
    ]


def recorded(index: int) -> str:
    """One of the recorded expositions, in the order they were taken, 5 s apart."""
    return RECORDED[index].read_text()


def as_version(text: str, version: str, generation: str = "v1") -> str:
    """The exposition a release would have given for the same state."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, brace, rest = line.partition("{")
        if not brace:
            lines.append(line)
            continue
        metric, suffix = _split(name)
        for candidate in (metric, RENAMED.get(metric)):
            if candidate is None or not _known(version, generation, candidate):
                continue
            labels = rest
            if not _has_engine_label(version, generation):
                labels = labels.replace('engine="0",', "")
            lines.append(f"{candidate}{suffix}{{{labels}")
    return "\n".join(lines) + "\n"


def _split(name: str) -> tuple[str, str]:
    if name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") in table():
        metric = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        return metric, name[len(metric) :]
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return name, ""


def _known(version: str, generation: str, metric: str) -> bool:
    # Both generations set the cache's description, which the table lists for one of them only.
    return metric == "vllm:cache_config_info" or registers(version, generation, metric)


def _has_engine_label(version: str, generation: str) -> bool:
    return generation == "v1" and versions().index(version) >= versions().index("0.8.3")
