"""Noise of paired scores on a real engine: of equal caches, and of each KV format against 16 bits.

One vLLM engine serves the model. Prompts of the built-in probe set are scored through the cache in
force twice, in different company: by a probe of an idle engine and of one that serves requests, and
by the scheduler one at a time and in a batch. Then each format is scored by `as_dtype`, and the
engine is switched to it and answers questions whose right answers are known. Each row has the
difference of every pair, worse upwards: nats per token, or shares of the right answer. Run with the
Python of an engine environment:

    python benchmarks/aa_noise.py --model SmolLM2-135M-Instruct
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import envelope
import format_quality

from kvserving_tuner.probes.builtin import builtin
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.probes.scoring import WORD, recall

BASE = "auto"
FORMATS = ("int8", "k8v4", "int4_hadamard", "int4", "int2")
COMPANY = 4
"""Requests beside a probe."""
PROMPT_WORDS = 300
QUESTION_WORDS = 90
ANSWER_TOKENS = 40
ASKING = ("questions", "conversation")
"""Kinds of built-in prompts whose last answer is about a single fact."""

Tokens = Sequence[int]


def main() -> None:
    """Measure, and write the rows as they come."""
    options = _options()
    engine = Engine(options)
    engine.switch(BASE)
    tokens = engine.tokens(options.prompts, options.window)
    skip = format_quality.FULL_BLOCKS * options.block_size
    rows: list[dict[str, Any]] = []

    def record(kind: str, name: str, pairs: Sequence[float], began: float, **more: Any) -> None:
        rows.append(
            {
                "kind": kind,
                "name": name,
                "pairs": len(pairs),
                "mean": statistics.fmean(pairs),
                "deviation": statistics.stdev(pairs),
                "discordant": sum(pair != 0 for pair in pairs) / len(pairs),
                "seconds": round(time.monotonic() - began, 1),
                **more,
                "differences": [round(pair, 9) for pair in pairs],
            }
        )
        print({key: rows[-1][key] for key in list(rows[-1])[:-1]}, flush=True)  # noqa: T201
        envelope.write(
            options.out, rows, model=options.model.name, dtype=options.dtype,
            block_size=options.block_size, window=options.window, scored_from=skip,
        )  # fmt: skip

    began = time.monotonic()
    scores: dict[str, list[float]] = {name: [] for name in ("base", "again", "alone")}
    scores |= {form: [] for form in options.formats}
    for ids in tokens:
        # All of one prompt, so that a run that is cut short has pairs of everything.
        scores["base"].append(engine.probe(ids, skip, BASE))
        scores["again"].append(engine.probe(ids, skip, BASE, engine.serve))
        engine.drain()
        scores["alone"] += engine.scheduled([ids], skip)
        for form in options.formats:
            scores[form].append(engine.probe(ids, skip, form))
        print(len(scores["base"]), round(time.monotonic() - began), flush=True)  # noqa: T201
        if time.monotonic() - began > 60 * options.minutes and len(scores["base"]) > 1:
            break
    base = scores["base"]
    record("likelihood", "probe: equal caches, idle and beside requests",
           less(scores["again"], base), began)  # fmt: skip
    batch = engine.scheduled(tokens[: len(base)], skip)
    record("likelihood", "scheduler: equal caches, alone and in a batch",
           less(batch, scores["alone"]), began)  # fmt: skip
    for form in options.formats:
        pairs = less(scores[form], base)
        record("likelihood", form, pairs, began, ppl_ratio=math.exp(statistics.fmean(pairs)))

    questions = engine.questions(options.questions)
    began = time.monotonic()
    in_batch = engine.answers(questions)
    right = [score for question in questions for score in engine.answers([question])]
    record("answers", "equal caches, alone and in a batch", less(right, in_batch), began,
           mean_score=statistics.fmean(right))  # fmt: skip
    for form in options.formats:
        began = time.monotonic()
        engine.switch(form)
        found = engine.answers(questions)
        record("answers", form, less(in_batch, found), began, mean_score=statistics.fmean(found))


def less(worse: Sequence[float], better: Sequence[float]) -> list[float]:
    """Differences of pairs."""
    return [a - b for a, b in zip(worse, better, strict=True)]


class Engine(format_quality.Engine):
    """A vLLM engine in this process that is asked for probes, beside requests or without."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self._tokenizer = self._llm.get_tokenizer()
        self._served = 0

    def tokens(self, count: int, window: int) -> list[Tokens]:
        """Built-in prompts in tokens, cut to one length."""
        found = [self._chat(prompt.messages) for prompt in builtin(count, PROMPT_WORDS)]
        return [ids[:window] for ids in found]

    def questions(self, count: int) -> list[tuple[Tokens, list[str]]]:
        """Conversations that end in a question, and what a right answer has to have."""
        found = []
        for prompt in self._asking(count):
            ids = self._chat(prompt.messages[:-1], add_generation_prompt=True)
            facts = [
                word for word in WORD.findall(prompt.messages[-1][1])
                if word[0].isdigit() or word[0].isupper()
            ]  # fmt: skip
            if len(ids) + ANSWER_TOKENS <= self._llm.model_config.max_model_len:
                found.append((ids, sorted(set(facts) - {"Order", "On"})))
        return found[:count]

    def _asking(self, count: int) -> list[Prompt]:
        return [
            prompt for prompt in builtin(4 * count, QUESTION_WORDS)
            if prompt.name.startswith(ASKING) and prompt.messages[-1][0] == "assistant"
        ]  # fmt: skip

    def _chat(self, messages: Sequence[tuple[str, str]], **more: Any) -> Tokens:
        conversation = [{"role": role, "content": content} for role, content in messages]
        text = self._tokenizer.apply_chat_template(conversation, tokenize=False, **more)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def probe(
        self, ids: Tokens, skip: int, kv_format: str, between: Callable[[], None] = lambda: None
    ) -> float:
        """Mean negative log-likelihood in nats per token as if the cache had a format."""
        probe_id = f"{kv_format}-{time.monotonic_ns()}"
        document = {"token_ids": list(ids), "form": "prefill", "as_dtype": kv_format, "skip": skip}
        answer = self.core.kvserving_probe_begin(probe_id, document)
        while answer["outcome"] == "Running":
            between()
            answer = self.core.kvserving_probe_advance(probe_id)
        if answer["outcome"] != "Done":
            raise SystemExit(f"{probe_id}: {answer}")
        return -statistics.fmean(answer["result"]["logprobs"][skip:])

    def serve(self) -> None:
        """One step of requests that are answered meanwhile; finished ones are replaced."""
        from vllm import SamplingParams

        engine = self._llm.llm_engine
        while engine.get_num_unfinished_requests() < COMPANY:
            self._served += 1
            prompt = builtin(self._served, QUESTION_WORDS)[-1]
            ids = list(self._chat(prompt.messages)[: 50 + 37 * self._served % 150])
            parameters = SamplingParams(max_tokens=30, ignore_eos=True, detokenize=False)
            engine.add_request(f"user-{self._served}", {"prompt_token_ids": ids}, parameters)
        engine.step()

    def drain(self) -> None:
        """Answer what is left of them."""
        while self._llm.llm_engine.has_unfinished_requests():
            self._llm.llm_engine.step()

    def scheduled(self, prompts: Sequence[Tokens], skip: int) -> list[float]:
        """The same by the engine's scheduler, of prompts that are given to it at once."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        outputs = self._generate(prompts, parameters)
        return [
            -statistics.fmean(
                row[token].logprob
                for row, token in zip(output.prompt_logprobs[skip:], ids[skip:], strict=True)
            )
            for ids, output in zip(prompts, outputs, strict=True)
        ]

    def answers(self, questions: Sequence[tuple[Tokens, list[str]]]) -> list[float]:
        """Shares of the facts that greedy answers have."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0)
        outputs = self._generate([ids for ids, _ in questions], parameters)
        return [
            recall(output.outputs[0].text, facts)
            for (_, facts), output in zip(questions, outputs, strict=True)
        ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60, help="most time for prompts")
    parser.add_argument("--window", type=int, default=320, help="tokens of a prompt")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--dtype", default="float32", help="in which the model runs")
    parser.add_argument("--streams", type=int, default=8, help="requests at a time")
    parser.add_argument("--kv-bytes", type=int, default=1 << 29)
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/aa_noise.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
