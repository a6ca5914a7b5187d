"""Quality of each KV format through the served cache: teacher-forced likelihood of a text.

One vLLM engine serves the model; the KV format is switched in it, as the runtime API does, and each
window of the text is scored twice: as a prompt (prefill), and token by token as an answer that is
forced to be the text (decode). All keys and values that attention reads are stored codes. Run with
the Python of an engine environment:

    python benchmarks/format_quality.py --model SmolLM2-135M-Instruct --text prose.txt
"""

import argparse
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_PLUGINS", "kvserving")

import envelope

from kvserving_kernels.formats.reads import low_bit_share

FORMATS = ("auto", "fp8_e4m3", "int8", "k8v4", "int4", "int4_hadamard", "k2v4", "int2")
FULL_BLOCKS = 2
"""Positions count after so many full blocks, where most of what is read is in settled codes."""


def main() -> None:
    """Score every format and write the rows as they come."""
    options = _options()
    windows = read_windows(options)
    engine = Engine(options)
    rows: list[dict[str, Any]] = []
    first = FULL_BLOCKS * options.block_size
    text = {"text": options.text.name, "token_ids_sha256": token_ids_sha256(windows)}
    for form in options.formats:
        engine.switch(form)
        began = time.monotonic()
        prefill = engine.score_prefill(windows, first)
        decode = engine.score_decode(windows, first)
        row = {
            "format": form,
            "effective": engine.describe()["effective"]["kv_cache_dtype"],
            "block_size": options.block_size,
            "window": options.window,
            "tokens": len(windows) * (options.window - first),
            "nll_prefill": prefill,
            "nll_decode": decode,
            "capacity_tokens": engine.describe()["capacity"]["kv_cache_tokens"],
            "low_bit_share": low_bit_share(
                form, options.block_size, engine.head_size, range(first, options.window)
            ),
            "model": options.model.name,
            "seconds": round(time.monotonic() - began, 1),
        }
        rows.append(row)
        base = rows[0]
        row["ppl_ratio"] = math.exp(decode - base["nll_decode"])
        row["ppl_ratio_prefill"] = math.exp(prefill - base["nll_prefill"])
        row["capacity_ratio"] = row["capacity_tokens"] / base["capacity_tokens"]
        print(json.dumps(row), flush=True)  # noqa: T201
        envelope.write(options.out, rows, **text)


class Engine:
    """A vLLM engine in this process."""

    def __init__(self, options: argparse.Namespace, **engine: Any) -> None:
        import torch
        from vllm import LLM

        cuda = torch.cuda.is_available()
        more: dict[str, Any] = (
            {"enable_trace_replay": True}
            if cuda
            # A CPU's kernels are compiled where an engine starts in a format of ours.
            else {
                "logits_processors": [_forcing()],
                "additional_config": {"kvserving": {"kv_cache_dtype": "int8"}},
            }
        )
        self._forced_by_engine = cuda
        self._llm = LLM(
            model=str(options.model),
            dtype=options.dtype,
            block_size=options.block_size,
            max_model_len=options.window + options.block_size,
            max_num_seqs=options.streams,
            kv_cache_memory_bytes=options.kv_bytes,
            enable_prefix_caching=False,
            enforce_eager=True,
            disable_log_stats=True,
            **more,
            **engine,
        )
        self.core = self._llm.llm_engine.engine_core.engine_core
        self.head_size = int(self.core.vllm_config.model_config.get_head_size())

    def describe(self) -> dict[str, Any]:
        """The runtime document."""
        found: dict[str, Any] = self.core.kvserving_describe()
        return found

    def switch(self, form: str) -> None:
        """Store the KV cache in another format."""
        change_id = f"{form}-{time.monotonic_ns()}"
        answer = self.core.kvserving_apply({"kv_cache_dtype": form, "change_id": change_id})
        if "runtime" not in answer:
            raise SystemExit(f"{form}: {answer}")

    def score_prefill(self, windows: Sequence[Sequence[int]], first: int) -> float:
        """Mean negative log-likelihood of the positions from `first` on, in nats per token."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        outputs = self._generate(windows, parameters)
        return _mean(
            -row[token].logprob
            for window, output in zip(windows, outputs, strict=True)
            for row, token in zip(output.prompt_logprobs[first:], window[first:], strict=True)
        )

    def score_decode(
        self, windows: Sequence[Sequence[int]], first: int, prompt: int | None = None
    ) -> float:
        """The same, one token per step after a prompt of `first` tokens or of so many."""
        from vllm import SamplingParams

        prompt = first if prompt is None else prompt

        def forced(window: Sequence[int]) -> SamplingParams:
            answer = list(window[prompt:])
            common: dict[str, Any] = {
                "max_tokens": len(answer), "logprobs": 0, "detokenize": False,
                "ignore_eos": True, "temperature": 0.0,
            }  # fmt: skip
            if self._forced_by_engine:
                return SamplingParams(**common, trace_decode_token_ids=answer)
            return SamplingParams(**common, extra_args={"forced": answer})

        outputs = self._generate(
            [window[:prompt] for window in windows], [forced(window) for window in windows]
        )
        nlls = []
        for window, output in zip(windows, outputs, strict=True):
            found = output.outputs[0]
            if list(found.token_ids) != list(window[prompt:]):
                raise SystemExit("the engine did not follow the text")
            rows = found.logprobs[first - prompt :]
            nlls += [-row[token].logprob for row, token in zip(rows, window[first:], strict=True)]
        return _mean(nlls)

    def _generate(self, prompts: Sequence[Sequence[int]], parameters: Any) -> list[Any]:
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return list(self._llm.generate(inputs, parameters, use_tqdm=False))


def _forcing() -> type:
    """A logits processor for engines that cannot replay a text themselves."""
    import torch
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class Forcing(AdapterLogitsProcessor):  # type: ignore[misc]
        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: Any) -> Any:
            wanted = (params.extra_args or {}).get("forced")
            if wanted is None:
                return None

            def force(output: list[int], logits: torch.Tensor) -> torch.Tensor:
                token = wanted[min(len(output), len(wanted) - 1)]
                kept = torch.full_like(logits, -torch.inf)
                kept[token] = 0
                return kept

            return force

    return Forcing


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


def read_windows(options: argparse.Namespace) -> list[list[int]]:
    """Windows of the text in tokens, spread evenly over all of it."""
    if options.text.suffix == ".json":
        tokens = json.loads(options.text.read_text())
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(options.model))
        tokens = tokenizer(options.text.read_text(), add_special_tokens=False)["input_ids"]
    scored = options.window - FULL_BLOCKS * options.block_size
    wanted = -(-options.tokens // scored)
    held = len(tokens) // options.window
    if held < wanted:
        raise SystemExit(
            f"--text: expected at least {wanted * options.window} tokens, got {len(tokens)}"
        )
    step = held / wanted
    starts = [int(number * step) * options.window for number in range(wanted)]
    return [tokens[start : start + options.window] for start in starts]


def token_ids_sha256(windows: Sequence[Sequence[int]]) -> str:
    """SHA-256 of the windows' token ids as JSON without spaces: tells whether two runs compare.

    The text itself is not kept, and what can be fetched of it changes with its releases.
    """
    return hashlib.sha256(json.dumps(windows, separators=(",", ":")).encode()).hexdigest()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--text", type=Path, required=True, help="plain text, or JSON of token ids")
    parser.add_argument("--tokens", type=int, default=50_000, help="least number of scored tokens")
    parser.add_argument("--window", type=int, default=1024, help="tokens per window")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument(
        "--formats", nargs="+", default=FORMATS,
        help="the first is the base; leave fp8_e4m3 out where the processor cannot",
    )  # fmt: skip
    parser.add_argument("--dtype", default="bfloat16", help="in which the model runs")
    parser.add_argument("--streams", type=int, default=64, help="windows at a time")
    parser.add_argument("--kv-bytes", type=int, default=4 << 30)
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/format_quality.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
