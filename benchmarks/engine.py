"""A vLLM engine on a GPU in each KV format: decode steps, prefill, and a load that fills the cache.

One engine serves a Llama of `--layers` layers in the shape of the 8B one, with random weights; its
KV format is switched between measurements, as the runtime API does.

- A shape such as `64x8000` is so many requests with so many tokens of context; `64x8000r` has
  lengths between 0.05 and 1.95 times that. `decode_ms` is the median GPU time of the decode graph,
  `wall_ms` the median time from one step's start to the next one's, `prefill_seconds` the time
  until each request has a token.
- `--prefill` lists prompts that come alone: `ttft_ms` is the median of three.
- The serving load is `--requests` requests of `--prompt` and `--answer` tokens at once, more than
  16 bits hold: `throughput` is answer tokens per second of all of it.

    python benchmarks/engine.py
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_PLUGINS", "kvserving")

import envelope

FORMATS: Final = ("auto", "fp8_e4m3", "int8", "k8v4", "int4", "int4_hadamard", "int2")
SHAPES: Final = ("64x8000", "16x30000", "1x30000", "64x8000r")
STOCK: Final = ("auto", "fp8_e4m3")
FIRST_TOKEN: Final = 100
STEPS: Final = 64
LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 32000, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


def main() -> None:
    """Measure all formats and write rows as they come."""
    options = _options()
    engine = Engine(options)
    rows: list[dict[str, Any]] = []
    for form in options.formats:
        began = time.perf_counter()
        engine.switch(form)
        about = {
            "format": form,
            "source": "stock" if form in STOCK else "ours",
            "layers": options.layers,
            "capacity_tokens": engine.describe()["capacity"]["kv_cache_tokens"],
            "switch_seconds": round(time.perf_counter() - began, 2),
        }
        found = [engine.decode(shape) for shape in options.shapes]
        found += [engine.prefill(length) for length in options.prefill]
        if options.requests:
            found.append(engine.serve(options.requests, options.prompt, options.answer))
        for row in found:
            rows.append({**about, **row})
            print(json.dumps(rows[-1]), flush=True)  # noqa: T201
        envelope.write(options.out, rows)


class Engine:
    """A vLLM engine in this process whose steps are timed."""

    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import LLM

        longest = max([_shape(shape)[1] * 2 for shape in options.shapes] + options.prefill)
        seqs = max([_shape(shape)[0] for shape in options.shapes] + [options.requests])
        sizes = sorted({1, *(2**power for power in range(4, 10) if 2**power < seqs), seqs})
        graphs: dict[str, Any] = {"cudagraph_capture_sizes": sizes}
        if not options.compile:
            graphs |= {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        with tempfile.TemporaryDirectory() as folder:
            config = LLAMA | {"num_hidden_layers": options.layers}
            Path(folder, "config.json").write_text(json.dumps(config))
            llm = LLM(
                model=folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                block_size=options.block_size,
                max_model_len=longest + 2 * STEPS,
                max_num_seqs=seqs,
                max_num_batched_tokens=8192,
                kv_cache_memory_bytes=options.kv_bytes,
                enable_prefix_caching=False,
                compilation_config=graphs,
                disable_log_stats=True,
            )
        self._engine = llm.llm_engine
        self._core = self._engine.engine_core.engine_core
        self._runner = self._core.model_executor.driver_worker.worker.model_runner
        self._events: list[tuple[Any, Any, int]] = []
        self._chance = random.Random(7)  # noqa: S311
        self._tokens: dict[str, int] = {}
        self._number = 0
        self._profiles: bool = options.kernels
        _spread_weights(self._runner.model)

    def describe(self) -> dict[str, Any]:
        """The runtime document."""
        found: dict[str, Any] = self._core.kvserving_describe()
        return found

    def switch(self, form: str) -> None:
        """Store the KV cache in another format."""
        change = {"kv_cache_dtype": form, "change_id": f"{form}-{time.monotonic_ns()}"}
        answer = self._core.kvserving_apply(change)
        if "runtime" not in answer:
            raise SystemExit(f"{form}: {answer}")
        self._time_graphs()

    def decode(self, shape: str) -> dict[str, Any]:
        """Row of decode steps with the requests of a shape."""
        batch, lengths = _lengths(shape)
        began = time.perf_counter()
        self._add(lengths, 2 * STEPS)
        self._step_until(lambda: self._everyone_has(1, batch))
        prefill = time.perf_counter() - began
        self._step_until(lambda: self._everyone_has(4, batch))
        self._events.clear()
        walls = []
        for _ in range(STEPS):
            start = time.perf_counter()
            self._step()
            walls.append(time.perf_counter() - start)
        _synchronize()
        kernels = self._kernels() if self._profiles else {}
        graphs = [start.elapsed_time(end) for start, end, size in self._events if size >= batch]
        self._end()
        return {
            "load": "decode",
            "batch": batch,
            "context": _shape(shape)[1],
            "ragged": shape.endswith("r"),
            "decode_ms": round(statistics.median(graphs), 3) if graphs else None,
            "wall_ms": round(statistics.median(walls) * 1e3, 3),
            "prefill_seconds": round(prefill, 3),
            **kernels,
        }

    def prefill(self, length: int) -> dict[str, Any]:
        """Row of a prompt that comes alone."""
        times = []
        for _ in range(4):
            began = time.perf_counter()
            self._add([length], 1)
            self._step_until(lambda: False)
            times.append(time.perf_counter() - began)
        ttft = round(statistics.median(times[1:]) * 1e3, 2)
        return {"load": "prefill", "batch": 1, "context": length, "ttft_ms": ttft}

    def serve(self, requests: int, prompt: int, answer: int) -> dict[str, Any]:
        """Row of a load that comes at once."""
        began = time.perf_counter()
        self._add([prompt] * requests, answer)
        self._step_until(lambda: False)
        took = time.perf_counter() - began
        throughput = round(requests * answer / took, 1)
        return {"load": "serving", "batch": requests, "context": prompt, "throughput": throughput}

    def _kernels(self, steps: int = 8) -> dict[str, Any]:
        """Microseconds of a step in each kernel, the longest first."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(steps):
                self._step()
            _synchronize()
        found = sorted(seen.key_averages(), key=lambda each: -each.device_time_total)
        return {"kernels": {e.key[:60]: round(e.device_time_total / steps, 1) for e in found[:12]}}

    def _add(self, lengths: Sequence[int], tokens: int) -> None:
        from vllm import SamplingParams

        self._tokens.clear()
        parameters = SamplingParams(
            max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False
        )
        for length in lengths:
            self._number += 1
            prompt = [self._chance.randrange(FIRST_TOKEN, 32000) for _ in range(length)]
            self._engine.add_request(str(self._number), {"prompt_token_ids": prompt}, parameters)

    def _step(self) -> None:
        for output in self._engine.step():
            self._tokens[output.request_id] = len(output.outputs[0].token_ids)

    def _step_until(self, done: Callable[[], bool]) -> None:
        while self._engine.has_unfinished_requests() and not done():
            self._step()
        _synchronize()

    def _everyone_has(self, count: int, requests: int) -> bool:
        return len(self._tokens) == requests and min(self._tokens.values()) >= count

    def _end(self) -> None:
        self._engine.abort_request(list(self._tokens))
        self._step_until(lambda: False)

    def _time_graphs(self) -> None:
        import torch

        manager = self._runner.cudagraph_manager
        run = manager.run_fullgraph

        def timed(described: Any) -> Any:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            found = run(described)
            end.record()
            self._events.append((start, end, described.num_tokens))
            return found

        manager.run_fullgraph = timed


def _spread_weights(model: Any) -> None:
    """Scale dummy weights, so that attention is neither uniform nor all on one token."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.fill_(1)
            else:
                weight.mul_(1000 if "embed" in name else 35 if "qkv_proj" in name else 30)


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()


def _shape(shape: str) -> tuple[int, int]:
    batch, _, context = shape.removesuffix("r").partition("x")
    return int(batch), int(context)


def _lengths(shape: str) -> tuple[int, list[int]]:
    batch, context = _shape(shape)
    if not shape.endswith("r"):
        return batch, [context] * batch
    chance = random.Random(3)  # noqa: S311
    return batch, [int(context * (0.05 + 1.9 * chance.random())) for _ in range(batch)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--prefill", nargs="*", type=int, default=[8192, 32768])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--kv-bytes", type=int, default=18 << 30)
    parser.add_argument("--requests", type=int, default=0, help="of the serving load")
    parser.add_argument("--prompt", type=int, default=3000)
    parser.add_argument("--answer", type=int, default=1000)
    parser.add_argument("--kernels", action="store_true", help="and the time of each kernel")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch")
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/engine_h200.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
