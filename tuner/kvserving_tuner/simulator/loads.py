"""Models of load: a few numbers that stand for a trace, and requests drawn from them.

A model has the rate and burstiness of arrivals, quantiles of the lengths of prompts and answers,
and how the two go together. `loads.json` has those fitted to public traces, each with its source.
It does not have what requests share.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.workload import Request, Workload

Array = np.ndarray[Any, np.dtype[np.float64]]
SHARES: Final = (*(part / 32 for part in range(32)), 0.98, 0.99, 0.995, 0.999, 1.0)
"""Shares of the requests that are no longer than each quantile; more of them where few are long."""


@dataclass(frozen=True)
class LoadModel:
    """Requests whose inter-arrival times are gamma and whose lengths have given quantiles."""

    name: str
    source: str
    rate: float
    """Requests per second."""
    variation: float
    """Standard deviation of the time between arrivals over its mean; 1 is Poisson."""
    correlation: float
    """Rank correlation of prompt and answer lengths."""
    prompts: tuple[float, ...]
    answers: tuple[float, ...]

    def draw(self, seconds: float, seed: int, rate: float | None = None) -> Workload:
        """Requests of so many seconds, at the model's rate or another one."""
        rate = self.rate if rate is None else rate
        if not rate > 0 or not seconds > 0:
            raise SimulationError("rate and seconds", "more than 0", f"{rate} and {seconds}")
        source = np.random.default_rng(seed)
        shape = 1 / max(self.variation, 1e-3) ** 2
        arrivals = np.empty(0)
        while not len(arrivals) or arrivals[-1] < seconds:
            count = int(rate * seconds) + 64
            more = np.cumsum(source.gamma(shape, 1 / (shape * rate), count))
            arrivals = np.concatenate([arrivals, more + (arrivals[-1] if len(arrivals) else 0.0)])
        arrivals = arrivals[arrivals < seconds]
        # Normal numbers with the correlation, turned into shares, pick the lengths.
        first = source.standard_normal(len(arrivals))
        other = source.standard_normal(len(arrivals))
        second = self.correlation * first + math.sqrt(1 - self.correlation**2) * other
        prompts, answers = _at(self.prompts, first), _at(self.answers, second)
        return Workload.of(
            self.name,
            (
                Request(float(at), int(prompt), int(answer))
                for at, prompt, answer in zip(arrivals, prompts, answers, strict=True)
            ),
        )


def fit_load(workload: Workload, source: str) -> LoadModel:
    """The model of a workload; SimulationError with fewer than ten requests."""
    requests = workload.requests
    if len(requests) < 10:
        raise SimulationError("workload", "at least 10 requests", str(len(requests)))
    between = np.diff([request.arrival for request in requests])
    mean = float(between.mean())
    if mean <= 0:
        raise SimulationError("workload", "arrivals at more than one time", "one")
    prompts = np.array([request.prompt for request in requests], dtype=np.float64)
    answers = np.array([request.answer for request in requests], dtype=np.float64)
    ranks = [np.argsort(np.argsort(values)).astype(np.float64) for values in (prompts, answers)]
    return LoadModel(
        name=workload.name,
        source=source,
        rate=round(1 / mean, 4),
        variation=round(float(between.std()) / mean, 4),
        correlation=round(_correlation(*ranks), 4),
        prompts=tuple(round(float(value), 1) for value in np.quantile(prompts, SHARES)),
        answers=tuple(round(float(value), 1) for value in np.quantile(answers, SHARES)),
    )


@cache
def load_models() -> Mapping[str, LoadModel]:
    """The models that come with this package, by name."""
    document = json.loads(files(__package__).joinpath("loads.json").read_text())
    return {row["name"]: _model(row) for row in document}


def to_json(model: LoadModel) -> dict[str, Any]:
    """A model as `loads.json` has it."""
    return asdict(model)


def _model(row: Mapping[str, Any]) -> LoadModel:
    lengths = {name: tuple(row[name]) for name in ("prompts", "answers")}
    return LoadModel(**{**row, **lengths})


def _correlation(first: Array, second: Array) -> float:
    first, second = first - first.mean(), second - second.mean()
    return float((first * second).mean() / (first.std() * second.std()))


def _at(quantiles: tuple[float, ...], normal: Array) -> Array:
    shares = [0.5 * (1 + math.erf(value / math.sqrt(2))) for value in normal]
    values = np.interp(shares, SHARES, quantiles)
    return np.maximum(1, np.rint(values))
