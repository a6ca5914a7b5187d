"""`kvserving plan`: what a model's KV cache takes and what fits, before anything is started."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvserving_kernels.formats import LAYOUTS
from kvserving_tuner.sizing.files import GIB, read_model
from kvserving_tuner.sizing.gpus import MEMORY_MIB
from kvserving_tuner.sizing.plan import Question, Row, advice, plan
from kvserving_tuner.sizing.shape import ModelShape, read_shape

HELP = "say what a model's KV cache takes and how many sequences fit"
CONTEXTS = (8_192, 32_768, 131_072)


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("--config", required=True, type=Path, help="config.json or its folder")
    parser.add_argument(
        "--context", action="append", type=int, metavar="TOKENS", help="may be repeated"
    )
    parser.add_argument("--dtype", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument(
        "--gpu", action="append", default=[], help=f"of {', '.join(MEMORY_MIB)}; may be repeated"
    )
    parser.add_argument("--weights-gib", type=float, help="default: what the folder's index says")
    parser.add_argument("--block-size", type=int, metavar="TOKENS")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N")
    parser.add_argument("--pipeline-parallel", type=int, default=1, metavar="N")
    parser.add_argument("--output", choices=("table", "json"), default="table")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the plan; raises SizingError with the field at fault."""
    model = read_model(options.config, options.weights_gib)
    shape, weights = read_shape(model.config), model.weights_bytes
    if options.gpu:
        weights = model.known_weights()
    question = Question(
        dtypes=options.dtype or _dtypes(shape),
        contexts=options.context or CONTEXTS,
        gpus=options.gpu,
        block_size=options.block_size,
        tensor_parallel=options.tensor_parallel,
        pipeline_parallel=options.pipeline_parallel,
        weights_bytes=weights or 0.0,
    )
    rows = plan(shape, question)
    if options.output == "json":
        document = json.dumps([row.to_json() for row in rows], indent=2)
        console.print(document, markup=False, highlight=False, soft_wrap=True)
        return 0
    console.print(table(rows, question.gpus))
    for line in (advice(rows), unsized(shape)):
        if line:
            console.print(line, highlight=False)
    return 0


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


def unsized(shape: ModelShape) -> str:
    """What no figure has in it."""
    if not shape.unsized_layers:
        return ""
    return f"The state of {shape.unsized_layers} layers without attention is not part of this."


def _dtypes(shape: ModelShape) -> tuple[str, ...]:
    latent = any(group.latent_size for group in shape.groups)
    return (shape.dtype, "fp8_e4m3", *(() if latent else (dtype.value for dtype in LAYOUTS)))
