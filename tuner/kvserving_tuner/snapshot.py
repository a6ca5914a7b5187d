"""One scrape of one engine, reduced to quantities per rank.

An engine with data parallelism exports one series per rank (label `engine`); readers that keep the
last series see one rank of many. Here every rank is kept apart, and later summed on purpose.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvserving_tuner.aliases import (
    CONFIG_INFO,
    KV_CACHE_INFO,
    PROCESS_START,
    SPECS,
    Alias,
    Kind,
    Quantity,
)
from kvserving_tuner.scrape import Sample, Scrape


@dataclass(frozen=True, slots=True)
class Cumulative:
    """A histogram as exported: cumulative counts per upper bound, since the engine started."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's gauges and counters, and its histograms."""

    values: Mapping[Quantity, float]
    histograms: Mapping[Quantity, Cumulative]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One engine at `at`, seconds since the epoch.

    `gaps` says for each quantity that cannot be read why not. `process` identifies the engine's
    process, `settings` what the plugin changes live: counters and gauges are comparable between
    two snapshots only while both stay the same.
    """

    at: float
    ranks: Mapping[str, Rank]
    gaps: Mapping[Quantity, str]
    names: Mapping[Quantity, str]
    process: Mapping[object, object]
    settings: frozenset[object]
    capacity_tokens: float | None
    block_size: float | None
    engine_samples: int
    config: Mapping[str, str] = field(default_factory=dict)
    """Labels that describe the cache as it was configured at the start."""


def take(scrape: Scrape) -> Snapshot:
    """Reduce one scrape."""
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for sample in scrape.samples:
        by_name[sample.name].append(sample)
    values: dict[str, dict[Quantity, float]] = defaultdict(dict)
    histograms: dict[str, dict[Quantity, Cumulative]] = defaultdict(dict)
    gaps: dict[Quantity, str] = {}
    names: dict[Quantity, str] = {}
    for quantity, spec in SPECS.items():
        for alias in spec.aliases:
            gap = (
                _read_histograms(by_name, alias, quantity, histograms)
                if spec.kind is Kind.HISTOGRAM
                else _read_values(by_name, alias, quantity, values)
            )
            if gap is None:
                names[quantity] = alias.name
                gaps.pop(quantity, None)
                break
            gaps.setdefault(quantity, gap)
    _give_to_a_rank(values, histograms)
    ranks = {
        engine: Rank(values[engine], histograms[engine])
        for engine in sorted(values.keys() | histograms.keys())
    }
    _report_partial(ranks, names, gaps)
    config = _labels(by_name[CONFIG_INFO])
    return Snapshot(
        at=scrape.at,
        ranks=ranks,
        gaps=gaps,
        names=names,
        process=_process(scrape.samples),
        settings=_settings(by_name, values),
        capacity_tokens=_capacity(config),
        block_size=_number(config.get("block_size")),
        engine_samples=scrape.engine_samples,
        config=config,
    )


def _matching(by_name: Mapping[str, list[Sample]], alias: Alias, suffix: str = "") -> list[Sample]:
    return [
        sample
        for sample in by_name.get(alias.name + suffix, ())
        if all(sample.labels.get(key) == value for key, value in alias.where.items())
        and all(sample.labels.get(key, "").startswith(start) for key, start in alias.begins.items())
    ]


def _rank_of(sample: Sample) -> str:
    return sample.labels.get("engine", "0")


def _read_values(
    by_name: Mapping[str, list[Sample]],
    alias: Alias,
    quantity: Quantity,
    into: dict[str, dict[Quantity, float]],
) -> str | None:
    samples = _matching(by_name, alias)
    if not samples:
        return "absent"
    sums: dict[str, float] = defaultdict(float)
    for sample in samples:
        sums[_rank_of(sample)] += sample.value if _is_summed(sample, alias) else 0.0
    if not all(math.isfinite(value) for value in sums.values()):
        return f"{alias.name} is not a number"
    for engine, value in sums.items():
        into[engine][quantity] = value
    return None


def _is_summed(sample: Sample, alias: Alias) -> bool:
    return all(
        sample.labels.get(key, "").startswith(starts) for key, starts in alias.summed.items()
    )


def _read_histograms(
    by_name: Mapping[str, list[Sample]],
    alias: Alias,
    quantity: Quantity,
    into: dict[str, dict[Quantity, Cumulative]],
) -> str | None:
    buckets = _matching(by_name, alias, "_bucket")
    if not buckets:
        return "absent"
    counts: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    totals: dict[str, float] = defaultdict(float)
    for sample in buckets:
        counts[_rank_of(sample)][_edge(sample)] += sample.value
    for sample in _matching(by_name, alias, "_sum"):
        totals[_rank_of(sample)] += sample.value
    found: dict[str, Cumulative] = {}
    for engine, buckets_of in counts.items():
        edges = tuple(sorted(buckets_of))
        cumulative = tuple(buckets_of[edge] for edge in edges)
        if not all(math.isfinite(value) for value in (*cumulative, totals[engine])):
            return f"{alias.name} is not a number"
        if any(math.isnan(edge) for edge in edges) or edges[-1] != math.inf:
            return f"{alias.name} has malformed buckets"
        found[engine] = Cumulative(edges, cumulative, totals[engine])
    for engine, cumulative_of in found.items():
        into[engine][quantity] = cumulative_of
    return None


def _give_to_a_rank(
    values: dict[str, dict[Quantity, float]], histograms: Mapping[str, object]
) -> None:
    """Put what the server counts on the first rank: it knows no ranks, and makes none up."""
    of_server = {
        quantity: rank.pop(quantity)
        for rank in list(values.values())
        for quantity in list(rank)
        if SPECS[quantity].of_server
    }
    ranks = sorted({engine for engine, rank in values.items() if rank} | histograms.keys())
    for engine in [engine for engine, rank in values.items() if not rank]:
        del values[engine]
    if ranks:
        values[ranks[0]].update(of_server)


def _edge(sample: Sample) -> float:
    edge = _number(sample.labels.get("le"))
    return math.nan if edge is None else edge


def _report_partial(
    ranks: Mapping[str, Rank], names: dict[Quantity, str], gaps: dict[Quantity, str]
) -> None:
    for quantity in list(names):
        have = sum(
            quantity in rank.values or quantity in rank.histograms for rank in ranks.values()
        )
        every = quantity is not Quantity.MAX_ACTIVE_SEQS and not SPECS[quantity].of_server
        if have < len(ranks) and every:
            gaps[quantity] = f"{names.pop(quantity)} is there for {have} of {len(ranks)} ranks"


def _process(samples: Iterable[Sample]) -> dict[object, object]:
    configs: set[object] = set()
    identity: dict[object, object] = {}
    for sample in samples:
        if sample.name == CONFIG_INFO:
            configs.add(frozenset(sample.labels.items()))
        elif sample.name == PROCESS_START or sample.name.endswith("_created"):
            identity[sample.name, frozenset(sample.labels.items())] = sample.value
    if configs:
        identity[CONFIG_INFO] = frozenset(configs)
    return identity


def _settings(
    by_name: Mapping[str, list[Sample]], values: Mapping[str, Mapping[Quantity, float]]
) -> frozenset[object]:
    caps = {
        (engine, rank[Quantity.MAX_ACTIVE_SEQS])
        for engine, rank in values.items()
        if Quantity.MAX_ACTIVE_SEQS in rank
    }
    caches = {
        frozenset(sample.labels.items())
        for sample in by_name.get(KV_CACHE_INFO, ())
        if sample.value == 1
    }
    return frozenset(caps | caches)


def _labels(samples: list[Sample]) -> Mapping[str, str]:
    return samples[0].labels if samples else {}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _capacity(config: Mapping[str, str]) -> float | None:
    """Tokens the KV cache holds: the engine's figure, or what its blocks hold, one being spare."""
    tokens = _number(config.get("kv_cache_size_tokens"))
    if tokens:
        return tokens
    blocks, size = _number(config.get("num_gpu_blocks")), _number(config.get("block_size"))
    return (blocks - 1) * size if blocks and size and blocks > 1 else None
