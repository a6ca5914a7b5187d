"""What must not matter for what a real engine answers, in each format, and what must."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.answers import Answer, difference

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "invariance" / "in_process.py"
FORMATS = ("int8", "int4")
OTHERS = ("k8v4", "int4_hadamard", "int2", "k2v4")
BLOCK_SIZE, CACHED, LAYERS = 64, 512, 4
PADDING_BYTES = 48
DEVIATION = "0.08"
"""Of a model's weights whose next token depends on all that came before."""
MISTAKEN_SHARE = {"int2": 3 / 4}
"""Sums in another order move an answer by less than this share of what one wrong block does.

They turn a code now and then, and one of two bits in both keys and values is worth much.
"""
OTHER_SHARE = 1 / 4
"""The same where nothing is said of a format."""
LEAST_MISTAKEN = 0.02
"""Nats by which one wrong block moves an answer at least, or comparisons with it say nothing."""
Found = Mapping[str, Mapping[str, Any]]


def run(python: str, environment: dict[str, str], model: Path, formats: Sequence[str]) -> Found:
    ran = subprocess.run(
        [python, str(PROGRAM), str(model), *formats],
        env=environment, capture_output=True, text=True, timeout=3600, check=False,
    )  # fmt: skip
    sys.stderr.write(ran.stderr[-4000:])
    assert ran.returncode == 0
    result: Found = json.loads(ran.stdout.splitlines()[-1])
    return result


def made(python: str, folder: Path, kv_heads: int) -> Path:
    corpus = ROOT / "docs" / "architecture.md"
    maker = ROOT / "hack" / "models" / "tiny_llama.py"
    subprocess.run(
        [python, str(maker), str(corpus), str(folder), str(kv_heads), DEVIATION], check=True
    )
    return folder


@pytest.fixture(scope="module")
def model(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(engine_python, tmp_path_factory.mktemp("models") / "two-heads", 2)


@pytest.fixture(scope="module")
def found(engine_python: str, model: Path, engine_environment: dict[str, str]) -> Found:
    return run(engine_python, engine_environment, model, FORMATS)


@pytest.fixture(scope="module")
def found_in_others(engine_python: str, model: Path, engine_environment: dict[str, str]) -> Found:
    return run(engine_python, engine_environment, model, OTHERS)


@pytest.fixture(scope="module")
def crowded(engine_python: str, model: Path, engine_environment: dict[str, str]) -> Found:
    return run(engine_python, engine_environment, model, ("crowd", *FORMATS))


@pytest.fixture(scope="module")
def found_with_one_head(
    engine_python: str, engine_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Found:
    """The same for a model with a single KV head, as a rank of many may have it."""
    one_head = made(engine_python, tmp_path_factory.mktemp("models") / "one-head", 1)
    return run(engine_python, engine_environment, one_head, FORMATS)


def answers(of: Mapping[str, Any]) -> Iterator[Answer]:
    for tokens, logprobs in zip(of["tokens"], of["logprobs"], strict=True):
        for answer, its in zip(tokens, logprobs, strict=True):
            yield list(zip(answer, its, strict=True))


def moved_by(some: Mapping[str, Any], others: Mapping[str, Any]) -> float:
    return difference(answers(some), answers(others))


def tolerance(of: Mapping[str, Any], dtype: str) -> float:
    """How far sums in another order may move an answer, measured by what one wrong block does."""
    mistaken = moved_by(of["mistaken"], of["cold"])
    assert [CACHED] == of["mistaken"]["cached"]
    assert mistaken > LEAST_MISTAKEN
    return mistaken * MISTAKEN_SHARE.get(dtype, OTHER_SHARE)


def check_answers(of: Mapping[str, Any], dtype: str) -> None:
    """A hit is the cold run bit for bit; chunks, siblings and company only reorder sums."""
    assert [0] == of["cold"]["cached"]
    assert [CACHED] == of["hit"]["cached"]
    assert of["hit"]["logprobs"] == of["cold"]["logprobs"]
    moved = {
        "small chunks": moved_by(of["small_chunks"], of["cold"]),
        "siblings": moved_by(of["sampled_together"], of["sampled_alone"]),
        "company": moved_by(of["in_company"], of["in_no_company"]),
    }
    allowed = tolerance(of, dtype)
    print(f"moved by {moved}, allowed {allowed}")  # noqa: T201
    assert max(moved.values()) < allowed


@pytest.mark.parametrize("dtype", FORMATS)
def test_how_a_prompt_is_served_does_not_change_its_answer(found: Found, dtype: str) -> None:
    check_answers(found[dtype], dtype)


def check_pages(of: Mapping[str, Any]) -> None:
    """Neither blocks that vLLM copies nor bytes behind a page change an answer."""
    dense, padded = of["strides"]["dense"], of["strides"]["padded"]
    assert [stride - PADDING_BYTES for stride in padded] == dense
    assert [0] == of["padded"]["cached"]
    for moved in (of["moved"], of["padded_moved"]):
        assert [CACHED] == moved["cached"]
        assert moved["blocks"][0] >= CACHED // BLOCK_SIZE
    for circumstance in ("moved", "padded", "padded_moved"):
        assert of[circumstance]["logprobs"] == of["cold"]["logprobs"]


@pytest.mark.parametrize("dtype", FORMATS)
def test_padded_pages_and_copied_blocks_answer_alike(found: Found, dtype: str) -> None:
    """Only for hybrid models, which are refused, vLLM makes either: here both are made by hand."""
    check_pages(found[dtype])


def check_codes(of: Mapping[str, Any]) -> None:
    """Another answer follows from other codes."""
    poisoned, cold = of["poisoned"], of["cold"]
    assert [CACHED] == poisoned["cached"]
    pairs = zip(poisoned["logprobs"][0][0], cold["logprobs"][0][0], strict=True)
    assert statistics.fmean(abs(a - b) for a, b in pairs) > 0.01


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_read_are_the_stored_codes(found: Found, dtype: str) -> None:
    check_codes(found[dtype])


@pytest.mark.parametrize("dtype", FORMATS)
def test_an_engine_of_32_bits_has_probes_too(found: Found, dtype: str) -> None:
    base, probed = found["auto"]["probed"]["live"], found[dtype]["probed"]
    assert probed["auto"] == pytest.approx(base, abs=1e-5)
    assert probed["live"] != pytest.approx(base, abs=1e-4)


def test_values_of_another_size_than_keys_are_refused(found: Found) -> None:
    assert "heads of 64 and 128" in found["unequal_heads"]["refused"]


@pytest.mark.parametrize("dtype", FORMATS)
def test_values_that_no_format_holds_are_counted(found: Found, dtype: str) -> None:
    (before,), (after,) = found[dtype]["counted"]["before"], found[dtype]["counted"]["after"]
    # One of each kind in every layer and step: a prompt's and three more.
    for kind in ("nonfinite_values", "saturated_values"):
        assert after[kind] - before[kind] == LAYERS * 4
    assert found["int8"]["counted"]["before"][0]["saturated_values"] == 0


@pytest.mark.full
@pytest.mark.parametrize("dtype", OTHERS)
def test_all_of_this_in_the_other_formats(found_in_others: Found, dtype: str) -> None:
    check_answers(found_in_others[dtype], dtype)
    check_pages(found_in_others[dtype])
    check_codes(found_in_others[dtype])


@pytest.mark.full
@pytest.mark.parametrize("dtype", FORMATS)
def test_preemption_and_company_do_not_change_an_answer(crowded: Found, dtype: str) -> None:
    crowd, alone = crowded[dtype]["crowd"], crowded[dtype]["alone"]
    # The latest requests are the ones that are preempted.
    assert crowd["preempted"][0] > 0
    assert [0] == alone["preempted"]
    last = {name: crowd[name][-len(alone[name]) :] for name in ("tokens", "logprobs")}
    moved, allowed = moved_by(last, alone), tolerance(crowded[dtype], dtype)
    print(f"moved by {moved}, allowed {allowed}")  # noqa: T201
    assert moved < allowed


@pytest.mark.full
@pytest.mark.parametrize("dtype", FORMATS)
def test_one_kv_head(found_with_one_head: Found, dtype: str) -> None:
    check_answers(found_with_one_head[dtype], dtype)
