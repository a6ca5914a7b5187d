"""Live switches of the KV format with requests in flight: how long they take, and what is lost.

One vLLM engine serves `--streams` requests of `--context` tokens each. While they decode, the
format goes through `--formats`. A row has the mean time of ten steps before a switch, and of the
ten after it, in which all requests are computed again. `longest_gap_seconds` is the longest time
that a request was without a token because of the switch, and `prefill_seconds` what it takes the
idle engine in the new format to compute the tokens that were in flight, as prompts: measured in the
end. Lost is a request without all its tokens. `scores` are a prompt's log-likelihood, in nats,
before the first switch and after the last one: with `auto` as the last format they are to be equal.

    python benchmarks/live_switch.py --model SmolLM2-135M-Instruct
"""

import argparse
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
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
    scores = {"before": load.score()}
    load.begin()
    load.step_until(lambda: load.everyone_has(10))
    rows = [_switched(load, form, options.context) for form in options.formats]
    load.step_until(lambda: False)
    whole = sum(len(tokens) == options.tokens for tokens in load.tokens.values())
    lost = options.streams - whole
    for row, prompts in rows:
        row["prefill_seconds"] = load.prefill_seconds(row["format"], prompts)
        print(json.dumps(row), flush=True)  # noqa: T201
    scores["after"] = load.score()
    more = {"requests": options.streams, "lost": lost, "scores": scores}
    print(json.dumps(more), flush=True)  # noqa: T201
    envelope.write(options.out, [row for row, _ in rows], **more)


def _switched(load: "Load", form: str, context: int) -> tuple[dict[str, Any], list[list[int]]]:
    """A row about a switch, and the tokens that were in flight."""
    step_ms = load.step_milliseconds()
    prompts = load.in_flight()
    began = time.monotonic()
    load.switch(form)
    switched = time.monotonic()
    row = {
        "format": form,
        "in_flight": len(prompts),
        "context": context,
        "tokens_in_flight": sum(map(len, prompts)),
        "switch_seconds": round(switched - began, 3),
        "step_ms_before": step_ms,
        "first_steps_ms": load.step_milliseconds(),
    }
    load.step_until(lambda: load.everyone_moved(switched))
    return {**row, "longest_gap_seconds": load.longest_gap(began)}, prompts


class Load:
    """Requests in an engine, and how far each has come."""

    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import LLM

        self._options = options
        self._llm = LLM(
            model=str(options.model),
            dtype=options.dtype,
            block_size=options.block_size,
            max_model_len=options.context + options.tokens + options.block_size,
            max_num_seqs=options.streams,
            kv_cache_memory_bytes=options.kv_bytes,
            enforce_eager=not options.graphs,
            disable_log_stats=True,
        )
        self._engine = self._llm.llm_engine
        # When a step's tokens were there, not when this process came to read them: those of the
        # last step before a switch are read after it.
        self._made = 0.0
        self._get_output = self._engine.engine_core.get_output
        self._engine.engine_core.get_output = self._timed_output
        self._prompts = dict(self._random_prompts())
        self.tokens: dict[str, list[int]] = {}
        self._times: dict[str, list[float]] = {}
        self._finished: set[str] = set()

    def begin(self) -> None:
        """Add the requests."""
        self._add(self._prompts, self._options.tokens)

    def in_flight(self) -> list[list[int]]:
        """Prompt and tokens so far of each request that has not got all its tokens."""
        return [
            [*prompt, *self.tokens.get(name, ())]
            for name, prompt in self._prompts.items()
            if name not in self._finished
        ]

    def switch(self, form: str) -> None:
        """Store the KV cache in another format."""
        identity = f"{form}-{time.monotonic_ns()}"
        change = {"kv_cache_dtype": form, "change_id": identity}
        answer = self._engine.engine_core.call_utility("kvserving_apply", change)
        if "runtime" not in answer:
            raise SystemExit(f"{form}: {answer}")

    def score(self) -> float:
        """Log-likelihood of the first prompt, in nats; needs an engine without requests."""
        from vllm import SamplingParams

        prompt = self._prompts["0"]
        parameters = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        [answer] = self._llm.generate([{"prompt_token_ids": prompt}], parameters, use_tqdm=False)
        rows = zip(answer.prompt_logprobs[1:], prompt[1:], strict=True)
        return round(math.fsum(row[token].logprob for row, token in rows), 3)

    def prefill_seconds(self, form: str, prompts: list[list[int]]) -> float:
        """How long prompts take together in a format, from none computed to the last one's token.

        Needs an engine without requests.
        """
        self.switch(form)
        self._llm.reset_prefix_cache()
        began = time.monotonic()
        self._add({f"{form}-{place}": prompt for place, prompt in enumerate(prompts)}, 1)
        self.step_until(lambda: False)
        return round(self._made - began, 3)

    def step_until(self, done: Callable[[], bool]) -> None:
        """Go on until something holds or nothing is left."""
        while self._engine.has_unfinished_requests() and not done():
            for output in self._engine.step():
                self.tokens[output.request_id] = list(output.outputs[0].token_ids)
                self._times.setdefault(output.request_id, []).append(self._made)
                if output.finished:
                    self._finished.add(output.request_id)

    def everyone_has(self, count: int) -> bool:
        """Whether each request has so many tokens."""
        return all(len(self.tokens.get(name, ())) >= count for name in self._prompts)

    def everyone_moved(self, since: float) -> bool:
        """Whether each request has ended or got a token since then."""
        return all(
            name in self._finished or self._times[name][-1] > since for name in self._prompts
        )

    def longest_gap(self, since: float) -> float:
        """Longest time between two tokens of a request, the later of which came since then."""
        pairs = (pair for name in self._prompts for pair in pairwise(self._times[name]))
        return round(max(later - earlier for earlier, later in pairs if later > since), 3)

    def step_milliseconds(self, steps: int = 10) -> float:
        """Mean time of a step; the device's own time may be less."""
        began, left = time.perf_counter(), steps

        def counted() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        self.step_until(counted)
        return round((time.perf_counter() - began) / steps * 1000, 3)

    def _timed_output(self) -> Any:
        outputs = self._get_output()
        self._made = outputs.timestamp
        return outputs

    def _add(self, prompts: dict[str, list[int]], tokens: int) -> None:
        from vllm import SamplingParams

        parameters = SamplingParams(
            max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False
        )
        for name, prompt in prompts.items():
            self._engine.add_request(name, {"prompt_token_ids": prompt}, parameters)

    def _random_prompts(self) -> Iterable[tuple[str, list[int]]]:
        chance = random.Random(0)  # noqa: S311
        vocabulary = self._engine.model_config.get_vocab_size()
        for number in range(self._options.streams):
            length = range(self._options.context)
            yield str(number), [chance.randrange(FIRST_TOKEN, vocabulary) for _ in length]


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
