"""`kvserving simulate`: what an engine would do with a load under given settings."""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.estimates import estimated
from kvserving_tuner.simulator.eviction import Window
from kvserving_tuner.simulator.loads import load_models
from kvserving_tuner.simulator.outcome import Outcome, simulate
from kvserving_tuner.simulator.servegen import draw, read_clients
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.simulator.traces import read_trace
from kvserving_tuner.simulator.workload import Workload
from kvserving_tuner.sizing.files import ModelFiles, read_model
from kvserving_tuner.sizing.gpus import MEMORY_MIB
from kvserving_tuner.sizing.memory import DEFAULT_BLOCK, Layout, bytes_per_token
from kvserving_tuner.sizing.plan import Question, cache_bytes
from kvserving_tuner.sizing.shape import read_shape
from kvserving_tuner.stepmodel.corrected import HIGHEST
from kvserving_tuner.stepmodel.kernels import has_kernels, step_times
from kvserving_tuner.stepmodel.log import applied, corrected_by_log

LEAST_WINDOWS = 5
"""Full minutes of a log, before it corrects anything."""
HELP = "say what an engine would do with a load under given settings"
DRAWN_SECONDS = 600.0
SHOWN = {
    "dtype": "format",
    "capacity_tokens": "cache\ntokens",
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "budget",
    "goodput_per_second": "good\nper s",
    "output_tokens_per_second": "tokens\nper s",
    "ttft_p50_ms": "TTFT\np50",
    "ttft_p95_ms": "ms\np95",
    "tpot_p50_ms": "TPOT\np50",
    "tpot_p95_ms": "ms\np95",
    "preemptions": "preemp-\ntions",
    "kv_usage_max": "KV\nmax",
    "prefix_hit_ratio": "hits",
    "rejected": "re-\njected",
}
"""Columns of the table; JSON has more."""
IF_DIFFERENT = ("max_num_seqs", "max_num_batched_tokens")
IF_ANY = ("prefix_hit_ratio", "rejected")


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    load = parser.add_argument_group("load").add_mutually_exclusive_group(required=True)
    load.add_argument("--trace", type=Path, help="an Azure or Mooncake trace, gzipped or not")
    load.add_argument("--clients", type=Path, help="ServeGen clients: a folder or a tar archive")
    load.add_argument("--load", metavar="NAME", help=f"one of {', '.join(load_models())}")
    parser.add_argument("--seconds", type=float, help="only so much of it, or drawn for so long")
    parser.add_argument("--begin", type=float, default=0.0, help="second of ServeGen's to start at")
    parser.add_argument("--speed", type=float, default=1.0, help="times the rate of arrival")
    parser.add_argument("--seed", type=int, default=0, help="for what is drawn at random")
    machine = parser.add_argument_group("model and machine")
    machine.add_argument("--config", type=Path, help="config.json or its folder")
    machine.add_argument("--gpu", help=f"one of {', '.join(MEMORY_MIB)}")
    machine.add_argument("--weights-gib", type=float, help="default: what the folder's index says")
    machine.add_argument("--tensor-parallel", type=int, default=1, metavar="N")
    machine.add_argument("--capacity-tokens", type=int, help="of the KV cache in the first format")
    machine.add_argument("--bytes-per-token", type=float, help="of the format, without --config")
    machine.add_argument(
        "--step-times", type=Path, help="JSON file; default: from measured kernels, else estimated"
    )
    machine.add_argument(
        "--log", type=Path, help="of `tune --record` on such an engine: corrects the step times"
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument("--dtype", action="append", metavar="NAME", help="may be repeated")
    for name, kind in (("max-num-seqs", "N"), ("max-num-batched-tokens", "TOKENS")):
        engine.add_argument(f"--{name}", action="append", type=int, metavar=kind)
    engine.add_argument("--max-active-seqs", type=int, metavar="N")
    engine.add_argument("--max-model-len", type=int, metavar="TOKENS")
    engine.add_argument("--max-num-queued-reqs", type=int, metavar="N")
    engine.add_argument("--block-size", type=int, metavar="TOKENS", help="default: 16, or 64")
    engine.add_argument("--watermark", type=float, default=0.0, metavar="SHARE")
    engine.add_argument("--no-prefix-caching", action="store_true")
    engine.add_argument("--window-tokens", type=int, metavar="N", help="StreamingLLM's window")
    engine.add_argument("--sink-tokens", type=int, default=4, metavar="N")
    parser.add_argument("--ttft-ms", type=float, help="limit that a good answer keeps")
    parser.add_argument("--tpot-ms", type=float, help="likewise")
    parser.add_argument("--output", choices=("table", "json"), default="table")


def run(options: argparse.Namespace, console: Console) -> int:
    """Simulate every combination of settings; errors of this package name what is at fault."""
    model = read_model(options.config, options.weights_gib) if options.config else None
    plain = _times(options, model)
    settings = _settings(options, model)
    times = _corrected(options, settings, plain)
    workload = _workload(options)
    rows = [
        row(one, simulate(workload, one, times), options.ttft_ms, options.tpot_ms)
        for one in _combined(options, settings)
    ]
    if options.output == "json":
        document = {"workload": workload.name, "step_times": times.to_json(), "rows": rows}
        text = json.dumps(document, indent=2)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return 0
    requests = len(workload.requests)
    console.print(f"{workload.name}: {requests} requests in {workload.seconds:.0f} s")
    console.print(table(rows))
    return 0


def row(
    settings: EngineSettings, outcome: Outcome, ttft_ms: float | None, tpot_ms: float | None
) -> dict[str, Any]:
    """One combination of settings with what came of it; None where there is no figure."""
    limits = (None if limit is None else limit / 1000 for limit in (ttft_ms, tpot_ms))
    found = {
        "dtype": settings.dtype,
        "capacity_tokens": settings.capacity_tokens(settings.dtype),
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "goodput_per_second": round(outcome.goodput(*limits), 4),
        **outcome.summary(),
    }
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in found.items()
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows for people, without what says nothing: limits that are all the same, zeros."""
    shown = Table(box=None, padding=(0, 1, 0, 0))
    names = [
        name
        for name in SHOWN
        if (name not in IF_DIFFERENT or len({one[name] for one in rows}) > 1)
        and (name not in IF_ANY or any(one[name] for one in rows))
    ]
    for name in names:
        shown.add_column(SHOWN[name], justify="left" if name == "dtype" else "right")
    for one in rows:
        shown.add_row(*(_cell(one[name]) for name in names))
    return shown


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def _workload(options: argparse.Namespace) -> Workload:
    seconds = options.seconds
    if options.trace:
        whole = read_trace(options.trace)
        found = whole if seconds is None else whole.cut(seconds)
        return found.faster(options.speed)
    seconds = DRAWN_SECONDS if seconds is None else seconds
    if options.clients:
        clients = read_clients(options.clients)
        found = draw(clients, options.begin, seconds, options.seed, options.clients.name)
        return found.faster(options.speed)
    models = load_models()
    if options.load not in models:
        raise SimulationError("load", f"one of {', '.join(models)}", options.load)
    model = models[options.load]
    return model.draw(seconds, options.seed, model.rate * options.speed)


def _times(options: argparse.Namespace, model: ModelFiles | None) -> StepTimes:
    if options.step_times:
        return StepTimes.load(options.step_times)
    if model is None or not options.gpu:
        raise SimulationError("step-times", "a file, or --config and --gpu", "neither")
    weights = model.known_weights()
    if has_kernels(options.gpu):
        return step_times(options.gpu, model.config, weights, options.tensor_parallel)
    return estimated(options.gpu, model.config, weights, options.tensor_parallel)


def _corrected(
    options: argparse.Namespace, settings: EngineSettings, times: StepTimes
) -> StepTimes:
    """Step times as a log of such an engine has them; SimulationError where it has others."""
    if options.log is None:
        return times
    size = settings.bytes_per_token[settings.dtype]
    correction = corrected_by_log(options.log, times, size)
    if correction.windows < LEAST_WINDOWS or not correction.is_trusted:
        factors = f"factors of {correction.fixed:.2f} and {correction.growing:.2f}"
        raise SimulationError(
            "log",
            f"at least {LEAST_WINDOWS} windows of an engine that is within a factor of "
            f"{HIGHEST:g} of these step times",
            f"{factors} after {correction.windows} windows",
        )
    return applied(times, correction)


def _settings(options: argparse.Namespace, model: ModelFiles | None) -> EngineSettings:
    """Settings of the first format; the others share its memory."""
    block = options.block_size
    if model is None:
        sizes = _given_size(options)
    else:
        shape = read_shape(model.config)
        dtypes = options.dtype or [shape.dtype]
        # One size for all, as engines keep theirs through a switch.
        block = block or max(Layout(dtype).block for dtype in dtypes)
        parallel = options.tensor_parallel
        sizes = {dtype: bytes_per_token(shape, Layout(dtype, block, parallel)) for dtype in dtypes}
    first = next(iter(sizes))
    if options.capacity_tokens is not None:
        memory = options.capacity_tokens * sizes[first]
    elif model is not None and options.gpu:
        question = Question(
            (), (), tensor_parallel=options.tensor_parallel, weights_bytes=model.known_weights()
        )
        memory = cache_bytes(question, options.gpu) * options.tensor_parallel
    else:
        raise SimulationError("capacity-tokens", "a number, or --config and --gpu", "neither")
    window, longest = options.window_tokens, options.max_model_len
    if model is not None and longest is None:
        # What the model can do, if it is less than what the cache holds in any format.
        own = shape.max_length or 0
        longest = own if 0 < own <= memory // max(sizes.values()) - block else None
    return EngineSettings(
        cache_bytes=memory,
        bytes_per_token=sizes,
        dtype=first,
        block_size=block or DEFAULT_BLOCK,
        max_num_seqs=1,
        max_num_batched_tokens=1,
        max_model_len=longest,
        watermark=options.watermark,
        prefix_caching=not options.no_prefix_caching,
        eviction=None if window is None else Window(options.sink_tokens, window),
        max_num_queued_reqs=options.max_num_queued_reqs,
    )


def _given_size(options: argparse.Namespace) -> dict[str, float]:
    if options.bytes_per_token is None:
        raise SimulationError("bytes-per-token", "a number, or --config", "neither")
    dtypes = options.dtype or ["auto"]
    if len(dtypes) > 1:
        raise SimulationError("config", "a model, to compare formats", "none")
    return {dtypes[0]: options.bytes_per_token}


def _combined(options: argparse.Namespace, settings: EngineSettings) -> Iterator[EngineSettings]:
    seqs, budgets = options.max_num_seqs or [256], options.max_num_batched_tokens or [2048]
    for dtype, most, budget in product(settings.bytes_per_token, seqs, budgets):
        yield replace(
            settings,
            dtype=dtype,
            max_num_seqs=most,
            max_num_batched_tokens=budget,
            max_active_seqs=options.max_active_seqs,
        )
