"""Every vLLM release from 0.6 to 0.33 is read, or known to lack a quantity."""

import pytest

from kvserving_tuner.aliases import SAMPLE_NAMES, SPECS, Kind, Quantity
from kvserving_tuner.scrape import Scrape, parse
from kvserving_tuner.snapshot import Snapshot, take
from tunerkit.expositions import as_version, generations, recorded, registers, versions

V1_SINCE = {
    Quantity.PREEMPTIONS: "0.8.0",
    Quantity.FINISHED: "0.7.2",
    Quantity.FAILED: "0.7.2",
    Quantity.ITERATIONS: "0.7.3",
    Quantity.PREFIX_QUERIES: "0.7.3",
    Quantity.PREFIX_HITS: "0.7.3",
}
"""First release whose V1 engine has a quantity, where it is not the first V1 engine."""
V0_SINCE = {Quantity.ITERATIONS: "0.6.4"}
V0_NEVER = {Quantity.PREFIX_QUERIES, Quantity.PREFIX_HITS}
OF_THE_PLUGIN = {Quantity.MAX_ACTIVE_SEQS}
FROM_FIRST_REQUEST = {Quantity.HTTP_REQUESTS, Quantity.HTTP_ERRORS}
"""Of the HTTP server; the recordings were taken before any request came in by it."""


def snapshot(text: str) -> Snapshot:
    scrape = parse(text, 1.0)
    assert isinstance(scrape, Scrape)
    return take(scrape)


def expected_missing(version: str, generation: str) -> set[Quantity]:
    since = V1_SINCE if generation == "v1" else V0_SINCE
    order = versions()
    missing = {q for q, first in since.items() if order.index(version) < order.index(first)}
    return (
        missing | OF_THE_PLUGIN | FROM_FIRST_REQUEST | (V0_NEVER if generation == "v0" else set())
    )


def test_the_table_covers_the_supported_releases() -> None:
    assert versions()[0] == "0.6.0"
    assert versions()[-1] == "0.33.0"
    # V0 in 22 releases, V1 in 39: from 0.7.1 on; the table has no 0.15.
    assert [g for _, g in generations()].count("v0") == 22
    assert [g for _, g in generations()].count("v1") == 39


@pytest.mark.parametrize(("version", "generation"), generations())
def test_quantities_resolve_or_are_known_to_be_missing(version: str, generation: str) -> None:
    seen = snapshot(as_version(recorded(3), version, generation))
    assert seen.gaps.keys() == expected_missing(version, generation)
    assert set(seen.gaps.values()) <= {"absent"}
    assert all(SPECS[quantity].absent for quantity in seen.gaps)


@pytest.mark.parametrize(("version", "generation"), generations())
def test_values_are_the_same_under_every_name(version: str, generation: str) -> None:
    reference = snapshot(recorded(3)).ranks["0"]
    seen = snapshot(as_version(recorded(3), version, generation)).ranks["0"]
    for quantity, value in seen.values.items():
        assert value == reference.values[quantity], quantity
    # Releases before the per-request histogram are read by the one per token instead.
    for quantity, histogram in seen.histograms.items():
        if quantity is not Quantity.TPOT:
            assert histogram == reference.histograms[quantity]


def test_derived_expositions_have_the_names_of_their_release_only() -> None:
    for version, generation in generations():
        for line in as_version(recorded(3), version, generation).splitlines():
            name = line.partition("{")[0]
            if line.startswith("vllm:") and name != "vllm:cache_config_info":
                stems = [name] + [
                    name.removesuffix(end) for end in ("_created", "_bucket", "_sum", "_count")
                ]
                assert any(registers(version, generation, stem) for stem in stems), (version, name)


@pytest.mark.parametrize(
    ("version", "quantity", "name"),
    [
        ("0.9.2", Quantity.KV_USAGE, "vllm:kv_cache_usage_perc"),
        ("0.9.1", Quantity.KV_USAGE, "vllm:gpu_cache_usage_perc"),
        ("0.10.2", Quantity.PREFIX_HITS, "vllm:prefix_cache_hits_total"),
        ("0.10.1", Quantity.TPOT, "vllm:time_per_output_token_seconds"),
        ("0.10.2", Quantity.TPOT, "vllm:inter_token_latency_seconds"),
        ("0.11.0", Quantity.TPOT, "vllm:request_time_per_output_token_seconds"),
        ("0.19.0", Quantity.WAITING, "vllm:num_requests_waiting"),
        ("0.20.0", Quantity.WAITING, "vllm:num_requests_waiting_by_reason"),
    ],
)
def test_the_newest_name_wins_where_two_coexist(
    version: str, quantity: Quantity, name: str
) -> None:
    assert snapshot(as_version(recorded(3), version)).names[quantity] == name


def test_of_two_names_with_different_values_the_newer_counts() -> None:
    text = recorded(3).replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    text += 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.125\n'
    assert snapshot(text).ranks["0"].values[Quantity.KV_USAGE] == 0.125


def test_waiting_counts_only_requests_that_wait_for_capacity() -> None:
    text = recorded(3).replace('reason="deferred"} 0.0', 'reason="deferred"} 7.0')
    assert "7.0" in text
    expected = snapshot(recorded(3)).ranks["0"].values[Quantity.WAITING]
    assert snapshot(text).ranks["0"].values[Quantity.WAITING] == expected


def test_text_watermarks_are_not_taken_for_the_kv_watermark() -> None:
    assert not any("watermark" in name for name in SAMPLE_NAMES)


def test_sample_names_hold_everything_a_histogram_exports() -> None:
    for spec in SPECS.values():
        for alias in spec.aliases:
            ends = ("_bucket", "_sum", "_count") if spec.kind is Kind.HISTOGRAM else ("",)
            assert all(alias.name + end in SAMPLE_NAMES for end in ends)


def served(handler: str, status: str, count: int, method: str = "POST") -> str:
    labels = f'handler="{handler}",method="{method}",status="{status}"'
    return f"http_requests_total{{{labels}}} {count}.0\n"


ANSWERED = served("/v1/completions", "2xx", 5) + served("/v1/chat/completions", "2xx", 7)


def test_answers_and_errors_of_the_api_are_counted_and_nothing_else() -> None:
    others = (
        served("/v1/completions", "4xx", 100)
        + served("/v1/models", "5xx", 100, method="GET")
        + served("/kvserving/v1/probe", "5xx", 100)
        + served("none", "5xx", 100)
    )
    values = snapshot(recorded(3) + ANSWERED + others).ranks["0"].values
    assert (values[Quantity.HTTP_REQUESTS], values[Quantity.HTTP_ERRORS]) == (12, 0)
    failed = others + served("/v1/completions", "5xx", 3)
    values = snapshot(recorded(3) + ANSWERED + failed).ranks["0"].values
    assert (values[Quantity.HTTP_REQUESTS], values[Quantity.HTTP_ERRORS]) == (15, 3)


def test_requests_of_no_page_of_the_api_tell_nothing() -> None:
    gaps = snapshot(recorded(3) + served("none", "2xx", 4)).gaps
    assert {gaps[quantity] for quantity in FROM_FIRST_REQUEST} == {"absent"}


def test_only_requests_that_finished_with_an_error_failed() -> None:
    text = recorded(3).replace('finished_reason="error",model_name="tiny"} 0.0',
                               'finished_reason="error",model_name="tiny"} 4.0')  # fmt: skip
    before, values = (snapshot(each).ranks["0"].values for each in (recorded(3), text))
    assert (before[Quantity.FAILED], values[Quantity.FAILED]) == (0, 4)
    assert values[Quantity.FINISHED] == before[Quantity.FINISHED] + 4


@pytest.mark.parametrize("ranks", [("0", "1"), ("3",)])
def test_what_the_server_counts_makes_no_rank_up_and_none_of_them_partial(
    ranks: tuple[str, ...],
) -> None:
    alike = recorded(3)
    text = "".join(alike.replace('engine="0"', f'engine="{rank}"') for rank in ranks)
    seen = snapshot(text + ANSWERED)
    assert tuple(seen.ranks) == ranks
    assert seen.gaps.keys() == OF_THE_PLUGIN
    counts = [rank.values.get(Quantity.HTTP_REQUESTS, 0) for rank in seen.ranks.values()]
    assert sum(counts) == 12


def test_a_server_without_an_engine_has_no_ranks() -> None:
    assert snapshot(ANSWERED).ranks == {}
