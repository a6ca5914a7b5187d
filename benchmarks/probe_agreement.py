"""Whether a probe's `as_dtype` tells the quality that an engine has once it is really switched.

One vLLM engine serves the model with a 16-bit KV cache. Each window of the text is scored in it by
probes, as if the cache had each format, in both forms. Then the format is switched, as the runtime
API does, and the same tokens are scored by the engine's own scheduler: as a prompt, and as answers
that are forced to be the text, in chunks of as many tokens as a probe has. In other chunks sums
round otherwise, a code here and there is another one, and soon most are: single likelihoods then
differ as those of two runs of a format do, and only their mean over many tokens is the same. Run
with the Python of an engine environment:

    python benchmarks/probe_agreement.py --model SmolLM2-135M-Instruct --text prose.txt
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import envelope
import format_quality

from kvserving_kernels.plugin.prober import CHUNK_TOKENS

BASE = "auto"
FORMATS = (BASE, "int8", "k8v4", "int4", "int4_hadamard", "int2", "k2v4")
FORMS = ("prefill", "decode")


def main() -> None:
    """Score by probes first, then by switched engines, and write the rows as they come."""
    options = _options()
    windows = format_quality.read_windows(options)
    # The chunks of what is scored begin behind the token before, those of a prompt at its first.
    first = format_quality.FULL_BLOCKS * options.block_size + 1
    engine = Engine(options, max_num_batched_tokens=options.chunk)
    rows: list[dict[str, Any]] = []
    for kv_format in options.formats:
        engine.switch(options.formats[0])
        probes = {form: engine.probe(windows, first, kv_format, form) for form in FORMS}
        engine.switch(kv_format)
        for form in FORMS:
            began = time.monotonic()
            if form == "prefill":
                switched = engine.score_prefill(windows, first)
            else:
                # A probe's first token by itself is the last one that has no likelihood.
                switched = engine.score_decode(windows, first, prompt=first - 1)
            took = time.monotonic() - began
            probed = probes[form]
            base = next((row for row in rows if row["form"] == form), None)
            row = {
                "format": kv_format,
                "form": form,
                "tokens": len(windows) * (options.window - first),
                "window": options.window,
                "block_size": options.block_size,
                "nll_as_dtype": probed["nll"],
                "nll_switched": switched,
                "ppl_difference_percent": 100 * (math.exp(probed["nll"] - switched) - 1),
                "ppl_ratio_as_dtype": math.exp(probed["nll"] - base["nll_as_dtype"] if base else 0),
                "ppl_ratio_switched": math.exp(switched - base["nll_switched"] if base else 0),
                "low_bit_share": probed["low_bit_share"],
                "probe_seconds": probed["seconds"],
                "longest_slice_seconds": probed["longest_slice_seconds"],
                "switched_seconds": round(took, 1),
                "model": options.model.name,
            }
            rows.append(row)
            print(json.dumps(row), flush=True)  # noqa: T201
            envelope.write(options.out, rows, text=options.text.name)


class Engine(format_quality.Engine):
    """A vLLM engine in this process that is asked for probes."""

    def probe(
        self, windows: Sequence[Sequence[int]], first: int, kv_format: str, form: str
    ) -> dict[str, Any]:
        """Mean negative log-likelihood in nats per token as if the cache had a format."""
        began, nlls, longest, share = time.monotonic(), [], 0.0, 0.0
        for number, window in enumerate(windows):
            probe_id = f"{kv_format}-{form}-{number}"
            document = {
                "token_ids": list(window), "form": form, "as_dtype": kv_format, "skip": first,
            }  # fmt: skip
            answer = self.core.kvserving_probe_begin(probe_id, document)
            while answer["outcome"] == "Running":
                slice_began = time.monotonic()
                answer = self.core.kvserving_probe_advance(probe_id)
                longest = max(longest, time.monotonic() - slice_began)
            if answer["outcome"] != "Done":
                raise SystemExit(f"{probe_id}: {answer}")
            nlls += [-value for value in answer["result"]["logprobs"][first:]]
            share = answer["result"]["low_bit_share"]
        found = {
            "nll": math.fsum(nlls) / len(nlls),
            "low_bit_share": share,
            "seconds": round(time.monotonic() - began, 1),
            "longest_slice_seconds": round(longest, 3),
        }
        print(json.dumps({"as_dtype": kv_format, "form": form, **found}), flush=True)  # noqa: T201
        return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--text", type=Path, required=True, help="plain text, or JSON of token ids")
    parser.add_argument("--tokens", type=int, default=3000, help="least number of scored tokens")
    parser.add_argument("--window", type=int, default=1024, help="tokens per window")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--formats", nargs="+", default=FORMATS, help="the first one is the base")
    parser.add_argument("--dtype", default="bfloat16", help="in which the model runs")
    parser.add_argument("--streams", type=int, default=1, help="windows at a time")
    parser.add_argument("--chunk", type=int, default=CHUNK_TOKENS, help="tokens of a step")
    parser.add_argument("--kv-bytes", type=int, default=1 << 29)
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/probe_agreement.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
