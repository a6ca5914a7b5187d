"""Options of benchmarks in which clients ask the engines of a cluster."""

import argparse
from pathlib import Path

import envelope


def parser(
    description: str | None, result: str, *, clients: int, dtype: str, warm_seconds: float
) -> argparse.ArgumentParser:
    """Give a parser of these options and their defaults; `result` is the name of the result file.

    A processor without AVX-512 or AMX computes several times faster in 32 bits than in 16.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--clients", type=int, default=clients)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--dtype", default=dtype, help="in which the model runs")
    parser.add_argument("--warm-seconds", type=float, default=warm_seconds)
    out = envelope.ROOT / "benchmarks/results" / result
    parser.add_argument("--out", type=Path, default=out)
    return parser
