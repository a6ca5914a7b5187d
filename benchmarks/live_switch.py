"""Live switches of the KV format with requests in flight: how long they take, and what is lost.

One vLLM engine serves `--streams` requests of `--context` tokens each. While they decode, the
format goes through `--formats`. A row has the mean time of ten steps before a switch, and of the
ten after it, in which all requests are computed again. Lost is a request without all its tokens.

    python benchmarks/live_switch.py --model SmolLM2-135M-Instruct
"""

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_PLUGINS", "kvserving")

import envelope

FORMATS = ("int4", "int8", "int2", "auto")
FIRST_TOKEN = 100
"""Tokens below are often special."""


def main() -> None:
    """Switch through all formats and write a row for each."""
    options = _options()
    load = Load(options)
    load.step_until(lambda: load.everyone_has(10))
    rows: list[dict[str, Any]] = []
    for form in options.formats:
        step_ms = load.step_milliseconds()
        began = time.perf_counter()
        load.switch(form)
        switched = time.perf_counter()
        row = {
            "format": form,
            "in_flight": load.unfinished,
            "context": options.context,
            "switch_seconds": round(switched - began, 3),
            "step_ms_before": step_ms,
            "first_steps_ms": load.step_milliseconds(),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)  # noqa: T201
    load.step_until(lambda: False)
    whole = sum(count == options.tokens for count in load.tokens.values())
    lost = options.streams - whole
    print(json.dumps({"requests": options.streams, "lost": lost}), flush=True)  # noqa: T201
    envelope.write(options.out, rows, requests=options.streams, lost=lost)


class Load:
    """Requests in an engine, and how far each has come."""

    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams

        chance = random.Random(0)  # noqa: S311
        llm = LLM(
            model=str(options.model),
            dtype=options.dtype,
            block_size=options.block_size,
            max_model_len=options.context + options.tokens + options.block_size,
            max_num_seqs=options.streams,
            kv_cache_memory_bytes=options.kv_bytes,
            enforce_eager=not options.graphs,
            disable_log_stats=True,
        )
        self._engine = llm.llm_engine
        vocabulary = self._engine.model_config.get_vocab_size()
        self.tokens: dict[str, int] = {}
        self._streams: int = options.streams
        self._finished: set[str] = set()
        for number in range(options.streams):
            prompt = [chance.randrange(FIRST_TOKEN, vocabulary) for _ in range(options.context)]
            parameters = SamplingParams(
                max_tokens=options.tokens, ignore_eos=True, temperature=0.0, detokenize=False
            )
            self._engine.add_request(str(number), {"prompt_token_ids": prompt}, parameters)

    @property
    def unfinished(self) -> int:
        """Requests that have not got all their tokens."""
        return self._streams - len(self._finished)

    def switch(self, form: str) -> None:
        """Store the KV cache in another format."""
        identity = f"{form}-{time.monotonic_ns()}"
        change = {"kv_cache_dtype": form, "change_id": identity}
        answer = self._engine.engine_core.call_utility("kvserving_apply", change)
        if "runtime" not in answer:
            raise SystemExit(f"{form}: {answer}")

    def step_until(self, done: Any) -> None:
        """Go on until something holds or nothing is left."""
        while self._engine.has_unfinished_requests() and not done():
            for output in self._engine.step():
                self.tokens[output.request_id] = len(output.outputs[0].token_ids)
                if output.finished:
                    self._finished.add(output.request_id)

    def everyone_has(self, count: int) -> bool:
        """Whether each request has so many tokens."""
        return len(self.tokens) == self._streams and min(self.tokens.values()) >= count

    def step_milliseconds(self, steps: int = 10) -> float:
        """Mean time of a step; the device's own time may be less."""
        began, left = time.perf_counter(), steps

        def counted() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        self.step_until(counted)
        return round((time.perf_counter() - began) / steps * 1000, 3)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16", help="in which the model runs")
    parser.add_argument("--kv-bytes", type=int, default=4 << 30)
    parser.add_argument("--graphs", action="store_true", help="compile and capture CUDA graphs")
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/live_switch.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
