"""Throughput of a CPU engine in each KV format, with stock vLLM beside it.

Every format gets a vLLM engine of its own; `stock` is one in which the plugin is not selected. They
are all alive at once and take turns, so that a row compares what was measured within seconds.

- `decode`: `--streams` requests of `--context` tokens decode; in every round each engine does
  `--steps` steps. Tokens per second are the median of the rounds, the ratio to stock the median of
  each round's own ratio, with its smallest and largest.
- `capacity`: the engines have `--small-kv-bytes` for keys and values, and `--requests` requests of
  `--small-context` tokens come at once. Tokens per second are answers over the whole run.

Run with the Python of an engine environment, on a machine that does nothing else:

    python benchmarks/cpu_decode.py --model SmolLM2-135M-Instruct
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import envelope

STOCK = "stock"
FORMATS = ("auto", "int8", "k8v4", "int4", "int4_hadamard")
FIRST_TOKEN = 100
"""Tokens below are often special."""
QUIET_SECONDS = 1.5
"""Processes of a stock engine poll for a second after their last message."""
ENDING_SECONDS = 30


def main() -> None:
    """Measure both loads and write a row for each engine and load."""
    options = _options()
    engines = (STOCK, *options.formats)
    rows = []
    for load, measure in (("decode", _decode), ("capacity", _capacity)):
        if load in options.loads:
            for row in measure(engines, options):
                rows.append({"load": load, **row})
                print(json.dumps(rows[-1]), flush=True)  # noqa: T201
    loads = {"load_average_at_end": [round(number, 2) for number in os.getloadavg()]}
    envelope.write(options.out, rows, **loads)


def _decode(engines: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    tokens = (options.rounds + 1) * options.steps + 16
    load = {"requests": options.streams, "context": options.context, "tokens": tokens}
    running = [Remote(name, options, options.kv_bytes, load) for name in engines]
    for engine in running:
        engine.ask(("begin", options.steps))
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        order = running if number % 2 else running[::-1]
        rounds.append({})
        for engine in order:
            time.sleep(QUIET_SECONDS)
            rounds[-1][engine.name] = options.streams / engine.ask(("step", options.steps))
        print(json.dumps(rounds[-1]), flush=True)  # noqa: T201
    rows = []
    for engine in running:
        speeds = [speeds[engine.name] for speeds in rounds]
        rows.append(
            {
                "engine": engine.name,
                "streams": options.streams,
                "context": options.context,
                "block_size": options.block_size,
                "dtype": options.dtype,
                "compiled": options.compile,
                "tokens_per_second": _spread(speeds),
                "over_stock": _spread([speeds[engine.name] / speeds[STOCK] for speeds in rounds]),
            }
        )
        engine.end()
    return rows


def _capacity(engines: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    count, tokens = options.requests, options.small_tokens
    load = {"requests": count, "context": options.small_context, "tokens": tokens}
    running = [Remote(name, options, options.small_kv_bytes, load) for name in engines]
    seconds: dict[str, list[float]] = {engine.name: [] for engine in running}
    for number in range(options.small_rounds):
        for engine in running if number % 2 else running[::-1]:
            time.sleep(QUIET_SECONDS)
            seconds[engine.name].append(engine.ask(("run", number)))
    rows = []
    for engine in running:
        speeds = [count * tokens / took for took in seconds[engine.name]]
        ratios = [s / o for s, o in zip(seconds[STOCK], seconds[engine.name], strict=True)]
        rows.append(
            {
                "engine": engine.name,
                "requests": count,
                "context": options.small_context,
                "answer_tokens": tokens,
                "dtype": options.dtype,
                "kv_bytes": options.small_kv_bytes,
                "kv_cache_tokens": engine.capacity,
                "tokens_per_second": _spread(speeds),
                "over_stock": _spread(ratios),
            }
        )
        engine.end()
    return rows


def _spread(numbers: Sequence[float]) -> dict[str, float]:
    found = {"median": statistics.median(numbers), "low": min(numbers), "high": max(numbers)}
    return {name: round(number, 3) for name, number in found.items()}


class Remote:
    """An engine in a process of its own."""

    def __init__(
        self, name: str, options: argparse.Namespace, kv_bytes: int, load: dict[str, int]
    ) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, name, options, kv_bytes, load))
        self._process.start()
        other.close()
        self.capacity = int(self._connection.recv())

    def ask(self, question: tuple[str, int]) -> float:
        """The engine's answer: seconds."""
        self._connection.send(question)
        return float(self._connection.recv())

    def end(self) -> None:
        """End the process; an executor that waits for a worker which is gone is not waited for."""
        self._connection.send(("end", 0))
        self._process.join(ENDING_SECONDS)
        self._process.kill()


def serve(
    connection: Connection,
    name: str,
    options: argparse.Namespace,
    kv_bytes: int,
    load: dict[str, int],
) -> None:
    """Answer the questions of `Remote` with an engine."""
    # The core in this process takes a step when it is told to; its worker is one of vLLM's own.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if not options.compile:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
    os.environ["VLLM_PLUGINS"] = "" if name == STOCK else "kvserving"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    engine = Engine(name, options, kv_bytes, load)
    connection.send(engine.capacity)
    while True:
        question, number = connection.recv()
        match question:
            case "begin":
                engine.add(0)
                engine.step_until(lambda: engine.everyone_has(3))
                engine.steps(number)
                connection.send(0.0)
            case "step":
                connection.send(engine.steps(number) / number)
            case "run":
                began = time.perf_counter()
                engine.add(number)
                engine.step_until(lambda: False)
                connection.send(time.perf_counter() - began)
            case "end":
                return


class Engine:
    """A vLLM engine that is stepped by hand."""

    def __init__(
        self, name: str, options: argparse.Namespace, kv_bytes: int, load: dict[str, int]
    ) -> None:
        from vllm import LLM

        own = name not in (STOCK, "auto")
        length = load["context"] + load["tokens"]
        llm = LLM(
            model=str(options.model),
            dtype=options.dtype,
            block_size=options.block_size,
            max_model_len=-(-length // options.block_size) * options.block_size,
            max_num_seqs=load["requests"],
            kv_cache_memory_bytes=kv_bytes,
            distributed_executor_backend="mp",
            enforce_eager=not options.compile,
            enable_prefix_caching=False,
            disable_log_stats=True,
            additional_config={"kvserving": {"kv_cache_dtype": name}} if own else {},
        )
        self._engine = llm.llm_engine
        config = self._engine.vllm_config
        self.capacity = config.cache_config.num_gpu_blocks * config.cache_config.block_size
        self._vocabulary = config.model_config.get_vocab_size()
        self._load = load
        self._tokens: dict[str, int] = {}

    def add(self, number: int) -> None:
        """Add all requests of a load."""
        from vllm import SamplingParams

        chance = random.Random(number)  # noqa: S311
        load = self._load
        parameters = SamplingParams(
            max_tokens=load["tokens"], ignore_eos=True, temperature=0.0, detokenize=False
        )
        for request in range(load["requests"]):
            prompt = [
                chance.randrange(FIRST_TOKEN, self._vocabulary) for _ in range(load["context"])
            ]
            self._engine.add_request(
                f"{number}-{request}", {"prompt_token_ids": prompt}, parameters
            )

    def step_until(self, done: Any) -> None:
        """Go on until something holds or nothing is left."""
        while self._engine.has_unfinished_requests() and not done():
            for output in self._engine.step():
                self._tokens[output.request_id] = len(output.outputs[0].token_ids)

    def steps(self, count: int) -> float:
        """Seconds that some steps take, in each of which all requests get a token."""
        before = sum(self._tokens.values())
        began = time.perf_counter()
        for _ in range(count):
            for output in self._engine.step():
                self._tokens[output.request_id] = len(output.outputs[0].token_ids)
        took = time.perf_counter() - began
        got = sum(self._tokens.values()) - before
        if got != count * self._load["requests"]:
            raise SystemExit(f"{count} steps gave {got} tokens: not all requests decode")
        return took

    def everyone_has(self, count: int) -> bool:
        """Whether each request has so many tokens."""
        tokens = self._tokens.values()
        return len(tokens) == self._load["requests"] and min(tokens) >= count


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--loads", nargs="+", default=("decode", "capacity"))
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16", help="in which the model runs")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--kv-bytes", type=int, default=1 << 29)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--small-context", type=int, default=256)
    parser.add_argument("--small-tokens", type=int, default=128)
    parser.add_argument("--small-kv-bytes", type=int, default=36 << 20)
    parser.add_argument("--small-rounds", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/cpu_decode.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
