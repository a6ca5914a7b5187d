"""Fit how long kernels take on a GPU to AIConfigurator's tables of measured ones.

Needs pyarrow, which nothing else does, beside numpy:

    uv run --no-project --with numpy,pyarrow python benchmarks/fit_kernels.py aiconfigurator/

Each table is fitted to an affine function by relative error, on every other row; the rest tell how
far off it is. The result is `tuner/kvserving_tuner/stepmodel/kernels.json`:

- `weight_byte_seconds`, `kernel_seconds`: a product with few rows, as in decode steps, reads its
  weights once.
- `small_operation_seconds`, `large_operation_seconds`: what an operation adds there, and with the
  rows of a prompt.
- `cache_byte_seconds`: by format, of the keys and values that decode attention reads.
- `attend_kernel_seconds`, `attend_sequence_seconds`: what such a kernel takes besides.
- `prefill_operation_seconds`: of attention within prompts.
- `exchange_seconds`, `exchange_byte_seconds`: an all-reduce by its number of GPUs.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parents[1] / "tuner/kvserving_tuner/stepmodel/kernels.json"
SOURCE = "ai-dynamo/aiconfigurator 095f58a5, measured kernels, Apache-2.0"
GPUS = {
    "A100-80GB": "a100_sxm/0.14.0",
    "H100": "h100_sxm/0.24.0",
    "H200": "h200_sxm/0.24.0",
    "L40S": "l40s/0.24.0",
    "B200": "b200_sxm/0.24.0",
}
LEAST_SIDE = 1024
"""Smaller products are not those that a step's time consists of."""
LEAST_BYTES = 256 << 20
DECODE_ROWS, PROMPT_ROWS = 256, 512
ELEMENT_BYTES = {"bfloat16": 2, "fp8": 1}
DIGITS = 4


def main(tables: Path) -> None:
    """Fit every GPU and write the file."""
    found = {name: fit_gpu(tables / path, path.rpartition("/")[2]) for name, path in GPUS.items()}
    document = {"source": SOURCE, "gpus": found}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n")
    for name, fitted in found.items():
        sys.stdout.write(f"{name}: {json.dumps(fitted['relative_error'])}\n")


def fit_gpu(folder: Path, version: str) -> dict[str, Any]:
    """Constants of one GPU, with the median relative error of each fit on rows left out."""
    errors: dict[str, float] = {}
    fitted: dict[str, Any] = {"vllm": version, "relative_error": errors}
    gemm = [
        row for row in read(folder / "gemm_perf.parquet")
        if row["gemm_dtype"] == "bfloat16" and min(row["n"], row["k"]) >= LEAST_SIDE
    ]  # fmt: skip
    few = [row for row in gemm if row["m"] <= DECODE_ROWS]
    (fixed, byte, operation), errors["few_rows"] = fit(
        [(1.0, 2.0 * r["n"] * r["k"], 2.0 * r["m"] * r["n"] * r["k"]) for r in few], seconds(few)
    )
    many = [row for row in gemm if row["m"] >= PROMPT_ROWS]
    # Weights are read in steps with prompts as in others: what is left is arithmetic.
    (large,), errors["many_rows"] = fit(
        [(2.0 * r["m"] * r["n"] * r["k"],) for r in many],
        seconds(many),
        [fixed + byte * 2 * r["n"] * r["k"] for r in many],
    )
    fitted |= {
        "kernel_seconds": fixed,
        "weight_byte_seconds": byte,
        "small_operation_seconds": operation,
        "large_operation_seconds": large,
        "cache_byte_seconds": {},
    }
    decode = list(attention(folder / "generation_attention_perf.parquet", decode=True))
    for dtype, size in ELEMENT_BYTES.items():
        rows = [row for row in decode if row["kv_cache_dtype"] == dtype]
        if not rows:
            continue
        features = [(1.0, float(r["batch_size"]), float(cache_bytes(r, size))) for r in rows]
        (kernel, sequence, read_byte), errors[f"decode_{dtype}"] = fit(features, seconds(rows))
        fitted["cache_byte_seconds"][dtype] = read_byte
        if dtype == "bfloat16":
            fitted |= {"attend_kernel_seconds": kernel, "attend_sequence_seconds": sequence}
    prompts = [
        row for row in attention(folder / "context_attention_perf.parquet", decode=False)
        if row["kv_cache_dtype"] == "bfloat16" and row["isl"] >= PROMPT_ROWS
    ]  # fmt: skip
    (_, fitted["prefill_operation_seconds"]), errors["prompts"] = fit(
        [(1.0, prompt_operations(row)) for row in prompts], seconds(prompts)
    )
    table = folder / "custom_allreduce_perf.parquet"
    # Not every GPU was measured with others.
    exchange = [
        row for row in (read(table) if table.exists() else [])
        if row["backend"] == "vllm_graph" and row["message_size"] <= 1 << 28
    ]  # fmt: skip
    fitted["exchange_seconds"], fitted["exchange_byte_seconds"] = {}, {}
    for devices in sorted({row["num_gpus"] for row in exchange}):
        rows = [row for row in exchange if row["num_gpus"] == devices]
        (start, per_byte), errors[f"exchange_{devices}"] = fit(
            [(1.0, float(row["message_size"])) for row in rows], seconds(rows)
        )
        fitted["exchange_seconds"][str(devices)] = start
        fitted["exchange_byte_seconds"][str(devices)] = per_byte
    return {name: rounded(value) for name, value in fitted.items()}


def attention(path: Path, decode: bool) -> Iterable[Mapping[str, Any]]:
    """Rows of models as they are: grouped heads of 128, all tokens seen."""
    for row in read(path):
        plain = row["head_dim"] == 128 and not row.get("window_size") and row["num_heads"] >= 8
        # What fits a GPU's own caches is read faster than memory is.
        if plain and (not decode or cache_bytes(row, ELEMENT_BYTES["bfloat16"]) >= LEAST_BYTES):
            yield row


def cache_bytes(row: Mapping[str, Any], size: int) -> int:
    """Bytes of keys and values that a decode kernel reads."""
    tokens = row["batch_size"] * (row["step"] + 1)
    return int(tokens * 2 * row["num_key_value_heads"] * row["head_dim"] * size)


def prompt_operations(row: Mapping[str, Any]) -> float:
    """Multiplications and additions of attention within prompts: half of the pairs, twice."""
    pairs = row["batch_size"] * row["isl"] * (row["isl"] + 1) / 2
    return float(4 * pairs * row["num_heads"] * row["head_dim"])


def seconds(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """Times of rows; the tables have milliseconds."""
    return [row["latency"] / 1000 for row in rows]


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a table that were measured."""
    from pyarrow import parquet

    return [row for row in parquet.read_table(path).to_pylist() if row["latency"] > 0]


def fit(
    features: Sequence[tuple[float, ...]], measured: list[float], known: list[float] | None = None
) -> tuple[list[float], float]:
    """Coefficients, none negative, and the median relative error on the rows left out.

    `known` is what each row takes for other reasons.
    """
    matrix, target = np.array(features), np.array(measured)
    base = np.zeros(len(target)) if known is None else np.array(known)
    weighted, rest = matrix / target[:, None], 1 - base / target
    sizes = np.abs(weighted).max(axis=0)
    kept = list(range(matrix.shape[1]))
    found = np.zeros(matrix.shape[1])
    while kept:
        solution = np.linalg.lstsq(weighted[::2][:, kept] / sizes[kept], rest[::2])
        if (solution[0] >= 0).all():
            found[kept] = solution[0] / sizes[kept]
            break
        del kept[int(np.argmin(solution[0]))]
    errors = np.abs((base + matrix @ found)[1::2] / target[1::2] - 1)
    return [float(each) for each in found], float(np.median(errors))


def rounded(value: Any) -> Any:
    """Numbers with as many digits as they deserve."""
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main(Path(sys.argv[1]))
