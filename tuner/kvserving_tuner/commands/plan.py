"""`kvserving plan`: what a model's KV cache takes and what fits, before anything is started."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvserving_kernels.formats import LAYOUTS
from kvserving_tuner.profiles import PROFILES, Advice, ProfileName
from kvserving_tuner.sizing.advice import advice, notes
from kvserving_tuner.sizing.files import GIB, ModelFiles, read_model
from kvserving_tuner.sizing.gpus import MEMORY_MIB
from kvserving_tuner.sizing.layers import LayerKind, ModelShape
from kvserving_tuner.sizing.memory import bytes_per_token
from kvserving_tuner.sizing.pages import stores_own
from kvserving_tuner.sizing.plan import UTILIZATION, Question, Row, cache_bytes, plan
from kvserving_tuner.sizing.shape import read_shape
from kvserving_tuner.sizing.workspace import workspace_bytes
from kvserving_tuner.stepmodel.kernels import has_kernels, step_times
from kvserving_tuner.stepmodel.queue import Engine, Load, largest_rate

HELP = "say what a model's KV cache takes and how many sequences fit"
CONTEXTS = (8_192, 32_768, 131_072)
IN_FLIGHT_STEPS = 2
"""Steps under way at once, as vLLM prepares one while another is computed."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "--config", required=True, type=Path, help="config.json, its folder, or a GGUF file"
    )
    parser.add_argument(
        "--context", action="append", type=int, metavar="TOKENS", help="may be repeated"
    )
    parser.add_argument("--dtype", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        help=f"of {', '.join(MEMORY_MIB)}, or its memory as 48GiB; may be repeated",
    )
    parser.add_argument(
        "--weights-gib", type=float, help="default: what the folder's index or a GGUF file says"
    )
    parser.add_argument("--block-size", type=int, metavar="TOKENS")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N")
    parser.add_argument("--pipeline-parallel", type=int, default=1, metavar="N")
    parser.add_argument("--gpu-memory-utilization", type=float, default=UTILIZATION)
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192, metavar="TOKENS")
    parser.add_argument("--max-num-seqs", type=int, default=256, metavar="N")
    parser.add_argument(
        "--profile",
        choices=list(ProfileName),
        default=ProfileName.CUSTOM,
        type=ProfileName,
        help="what the model is used for: also say what to start with",
    )
    load = parser.add_argument_group("load, of which to say how much each format carries")
    load.add_argument("--prompt-tokens", type=int, metavar="N", help="mean, without cached ones")
    load.add_argument("--answer-tokens", type=int, metavar="N", help="mean")
    load.add_argument("--ttft-ms", type=float, help="mean time to first token that is kept")
    load.add_argument("--tpot-ms", type=float, help="mean time per output token that is kept")
    parser.add_argument("--output", choices=("table", "json"), default="table")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the plan; raises SizingError with the field at fault."""
    model = read_model(options.config, options.weights_gib)
    shape, weights = read_shape(model.config), model.weights_bytes
    if options.gpu:
        weights = model.known_weights()
    dtypes = options.dtype or _dtypes(shape)
    budget, parallel = options.max_num_batched_tokens, options.tensor_parallel
    question = Question(
        dtypes=dtypes,
        contexts=options.context or CONTEXTS,
        gpus=options.gpu,
        block_size=options.block_size,
        tensor_parallel=parallel,
        pipeline_parallel=options.pipeline_parallel,
        weights_bytes=weights or 0.0,
        utilization=options.gpu_memory_utilization,
        step_tokens=IN_FLIGHT_STEPS * budget,
        workspaces={
            dtype: workspace_bytes(model.config, dtype, budget, options.max_num_seqs, parallel)
            for dtype in dtypes
        },
    )
    rows = plan(shape, question)
    if options.output == "json":
        document = json.dumps([row.to_json() for row in rows], indent=2)
        console.print(document, markup=False, highlight=False, soft_wrap=True)
        return 0
    console.print(layers(shape), markup=False, highlight=False)
    console.print(table(rows, question.gpus))
    carried = rates(options, model, shape, question)
    said = (advice(rows, question), *carried, *notes(shape, question))
    for line in (*said, *start(options.profile, shape)):
        if line:
            console.print(line, markup=False, highlight=False)
    return 0


def rates(
    options: argparse.Namespace, model: ModelFiles, shape: ModelShape, question: Question
) -> tuple[str, ...]:
    """How much of a load each format carries, on the GPUs whose kernels were measured."""
    if options.prompt_tokens is None or options.answer_tokens is None:
        return ()
    # Stages that wait for each other are another matter.
    if question.pipeline_parallel > 1:
        return ()
    load = Load(options.prompt_tokens, options.answer_tokens)
    targets = [None if ms is None else ms / 1000 for ms in (options.ttft_ms, options.tpot_ms)]
    lines = []
    for gpu in filter(has_kernels, question.gpus):
        found = []
        for dtype in question.dtypes:
            layout = question.layout(dtype)
            size = bytes_per_token(shape, layout)
            cache = cache_bytes(question, gpu, dtype) * question.devices
            times = step_times(
                gpu, model.config, question.weights_bytes, question.tensor_parallel, dtype
            )
            engine = Engine(
                times, size, cache / size, options.max_num_seqs, options.max_num_batched_tokens
            )
            found.append(f"{dtype} {largest_rate(engine, load, *targets):.1f}")
        lines.append(
            f"Requests of {load.prompt} and {load.answer} tokens per second on {gpu}, "
            f"by measured kernels: {', '.join(found)}."
        )
    return tuple(lines)


def start(name: ProfileName, shape: ModelShape) -> tuple[str, ...]:
    """What to start with for a use, with the reason for each setting; nothing for Custom."""
    profile = PROFILES.get(name)
    if profile is None:
        return ()
    fits = [dtype for dtype in profile.dtypes if dtype not in LAYOUTS or stores_own(shape)]
    eviction = profile.eviction
    if profile.evicts and not stores_own(shape):
        eviction = Advice("None", "windows are for models with full attention in every layer")
    flags = [f"{flag} {value}" for flag, value in profile.engine_flags.items()]
    lines = [
        f"To start with for {name} ({profile.summary}):",
        f"  KV format {profile.dtype.value}: {profile.dtype.reason}.",
        f"  --max-num-batched-tokens {profile.batched_tokens}: {profile.batched_reason}.",
        f"  Prefix caching {profile.caching.value}: {profile.caching.reason}.",
        f"  Eviction {eviction.value}: {eviction.reason}.",
    ]
    if flags:
        lines.append(f"  {', '.join(flags)}: {profile.flags_reason}.")
    lines.append(f"  Formats to allow, where the cache binds: {', '.join(fits)}.")
    lines.append(f"  Watch {profile.watch}.")
    return tuple(lines)


def layers(shape: ModelShape) -> str:
    """What a model's layers keep, in a line."""
    parts = []
    for group in shape.groups:
        detail = ""
        if group.kind is LayerKind.LATENT:
            detail = f" of {group.latent_size} elements"
        elif group.kind is not LayerKind.STATE:
            window = f", the last {group.window} tokens" if group.window else ""
            detail = f", {group.kv_heads} KV heads of {group.head_size}{window}"
        parts.append(f"{group.count} layers with {group.kind}{detail}")
    return "; ".join(parts) + "."


def table(rows: Sequence[Row], gpus: Sequence[str]) -> Table:
    """Rows for people."""
    shown = Table(box=None)
    for name in ("format", "KiB/token", "context", "GiB/sequence", *(f"fit on {g}" for g in gpus)):
        shown.add_column(name, justify="left" if name == "format" else "right")
    for row in rows:
        counts = [str(row.sequences[gpu]) for gpu in gpus]
        per_token, size = f"{row.bytes_per_token / 1024:.2f}", f"{row.bytes / GIB:.3f}"
        shown.add_row(row.dtype, per_token, str(row.context), size, *counts)
    return shown


def _dtypes(shape: ModelShape) -> tuple[str, ...]:
    own = (dtype.value for dtype in LAYOUTS) if stores_own(shape) else ()
    return (shape.dtype, "fp8_e4m3", *own)
