"""Where requests come from: public traces, ServeGen's clients, fitted models."""

import gzip
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.loads import LoadModel, fit_load, load_models
from kvserving_tuner.simulator.servegen import draw, read_clients
from kvserving_tuner.simulator.traces import read_trace
from kvserving_tuner.simulator.workload import Request, Shared, Workload, mean_lengths

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.9799600,110,0
"""
SHARED_BY_ALL, SHARED_BY_TWO, OWN = [0, 1], [2], [7]
MOONCAKE = [
    {"timestamp": 0, "input_length": 2000, "output_length": 5, "hash_ids": [0, 1, 2, 3]},
    {"timestamp": 1500, "input_length": 1600, "output_length": 6, "hash_ids": [0, 1, 2, 4]},
    {"timestamp": 2500, "input_length": 1500, "output_length": 7, "hash_ids": [0, 1, 7]},
]


def written(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["code.csv", "code.csv.gz"])
def test_an_azure_trace(tmp_path: Path, name: str) -> None:
    found = read_trace(written(tmp_path / name, AZURE))
    assert found.requests == (
        Request(0.0, 4808, 10),
        Request(0.052, 3180, 8),
        Request(2.0, 110, 1),
    )
    assert found.seconds == 2.0


def test_a_mooncake_trace_keeps_what_requests_share(tmp_path: Path) -> None:
    text = "\n".join(map(json.dumps, MOONCAKE))
    found = read_trace(written(tmp_path / "conversation.jsonl", text))
    # What all share is one stretch, what two share another; what one has alone is none.
    both = (Shared(0, 1024), Shared(2, 1536))
    assert [request.prefix for request in found.requests] == [both, both, (Shared(0, 1024),)]
    assert [request.arrival for request in found.requests] == [0.0, 1.5, 2.5]


def test_a_shared_stretch_ends_with_the_prompt(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]},
        {"timestamp": 9, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]},
    ]
    text = "\n".join(map(json.dumps, rows))
    found = read_trace(written(tmp_path / "t.jsonl", text))
    assert found.requests[0].prefix == (Shared(0, 600),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an Azure trace"),
        ("a,b\n1,2\n", "an Azure trace"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,4\n", "line 2"),
        (AZURE + "yesterday,4,5\n", "line 5"),
        ('{"timestamp": 0}', "line 1: expected the field input_length"),
        ("{nonsense", "line 1: expected a JSON object"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "at least one request"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        read_trace(written(tmp_path / "trace.csv", text))


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "broken.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(SimulationError, match="a file that can be read"):
        read_trace(tmp_path / "broken.csv.gz")


def test_a_workload_can_be_cut_and_sped_up() -> None:
    work = Workload.of("w", [Request(4.0, 1, 1), Request(0.0, 2, 2), Request(9.0, 3, 3)])
    assert [request.prompt for request in work.requests] == [2, 1, 3]
    assert [request.arrival for request in work.cut(9.0).faster(2.0).requests] == [0.0, 2.0]
    assert mean_lengths(work.requests) == (2.0, 2.0)
    with pytest.raises(SimulationError, match="speed"):
        work.faster(0)


@pytest.mark.parametrize(
    ("request_of", "field"),
    [
        ({"prompt": 0}, "prompt and answer"),
        ({"answer": 0}, "prompt and answer"),
        ({"arrival": -1.0}, "arrival"),
        ({"arrival": float("nan")}, "arrival"),
        ({"prefix": (Shared("a", 11),)}, "prefix"),
        ({"prefix": (Shared("a", 8), Shared("b", 7))}, "prefix"),
    ],
)
def test_what_is_no_request_is_refused(request_of: dict[str, object], field: str) -> None:
    with pytest.raises(SimulationError) as refused:
        Request(**{"arrival": 0.0, "prompt": 10, "answer": 1, **request_of})  # type: ignore[arg-type]
    assert refused.value.field == field


TRACE = "0,0,0,,0,0\n600,2.0,1.0,Gamma,1.0,0.5\n1200,4.0,3.0,Weibull,0.5,0.1\n"
DATASET = {
    "0": {"input_tokens": "{}", "output_tokens": "{}"},
    "600": {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{7: 1.0}"},
    "1200": {"input_tokens": "{50: 1.0}", "output_tokens": "{9: 0.25, 11: 0.75}"},
}
FILES = {
    "data/chunk-3-trace.csv": TRACE,
    "data/chunk-3-dataset.json": json.dumps(DATASET),
    "data/chunk-4-trace.csv": TRACE,
}


@pytest.fixture(params=["folder", "archive"])
def clients(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "folder":
        for name, text in FILES.items():
            (tmp_path / Path(name).name).write_text(text)
        return tmp_path
    path = tmp_path / "clients.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_servegen_clients_have_the_rates_and_lengths_of_their_windows(clients: Path) -> None:
    found = read_clients(clients)
    assert list(found) == ["chunk-3"]
    work = draw(found, 300, 1500, seed=1)
    first = [r for r in work.requests if r.arrival < 900]
    second = [r for r in work.requests if r.arrival >= 900]
    assert min(r.arrival for r in first) >= 300
    assert len(first) == pytest.approx(1200, rel=0.1)
    assert len(second) == pytest.approx(2400, rel=0.3)
    assert {r.prompt for r in first} == {100, 300}
    assert {(r.prompt, r.answer) for r in second} == {(50, 9), (50, 11)}
    assert variation(second) > 1.5 > 1.2 > variation(first)
    assert draw(found, 300, 1500, seed=1) == work != draw(found, 300, 1500, seed=2)


def variation(requests: Sequence[Request]) -> float:
    between = np.diff([request.arrival for request in requests])
    return float(between.std() / between.mean())


def test_what_is_no_client_is_said(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=r"chunk-N-trace\.csv"):
        read_clients(tmp_path)
    (tmp_path / "chunk-1-trace.csv").write_text("0,1,1\n")
    (tmp_path / "chunk-1-dataset.json").write_text("{}")
    with pytest.raises(SimulationError, match="chunk-1"):
        read_clients(tmp_path)
    with pytest.raises(SimulationError, match="a folder or an archive"):
        read_clients(tmp_path / "chunk-1-trace.csv")


def test_a_model_drawn_from_is_the_model_that_is_fitted_to_it() -> None:
    lengths = tuple(float(value) for value in np.geomspace(10, 5000, 37))
    model = LoadModel("m", "made up", 5.0, 2.0, 0.6, lengths, lengths)
    found = fit_load(model.draw(4000, seed=3), "drawn")
    assert found.rate == pytest.approx(5.0, rel=0.1)
    assert found.variation == pytest.approx(2.0, rel=0.1)
    assert found.correlation == pytest.approx(0.6, abs=0.05)
    assert found.prompts[16] == pytest.approx(lengths[16], rel=0.1)
    assert found.answers[28] == pytest.approx(lengths[28], rel=0.1)


def test_a_model_draws_as_long_and_as_fast_as_asked() -> None:
    model = load_models()["azure-conversation"]
    work = model.draw(600, seed=1, rate=20.0)
    assert len(work.requests) == pytest.approx(12000, rel=0.1)
    assert work.seconds < 600
    assert model.draw(600, seed=1, rate=20.0) == work
    with pytest.raises(SimulationError):
        model.draw(0, seed=1)


def test_shipped_models_say_where_they_are_from_and_have_the_traces_figures() -> None:
    models = load_models()
    assert all("CC-BY-4.0" in m.source or "Apache-2.0" in m.source for m in models.values())
    # Published means: 1,155 and 211 tokens, 5.53 requests per second; burstiness 1.09 and 13.2.
    conversation = models["azure-conversation"]
    prompts, answers = mean_lengths(conversation.draw(3600, seed=1).requests)
    assert prompts == pytest.approx(1155, rel=0.1)
    assert answers == pytest.approx(211, rel=0.1)
    assert conversation.rate == pytest.approx(5.53, rel=0.01)
    assert conversation.variation == pytest.approx(1.09, rel=0.01)
    assert models["azure-code"].variation == pytest.approx(13.2, rel=0.01)


@pytest.mark.parametrize("arrivals", [[0.0] * 5, [1.0] * 20])
def test_too_little_to_fit_is_said(arrivals: list[float]) -> None:
    with pytest.raises(SimulationError):
        fit_load(Workload.of("w", [Request(at, 5, 5) for at in arrivals]), "made up")
