"""Runs an engine in this process through several caches and prints what it did, as JSON.

Usage: in_process.py MODEL, in the engine's Python. Inside the process the scheduler's blocks can be
counted after each step, and a reference model with the policy's mask scores the same tokens.
"""

import json
import os
import sys
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from transformers import LlamaForCausalLM
from vllm import LLM, SamplingParams

BLOCK_SIZE, SINKS, WINDOW = 32, 40, 100
BUDGET, LENGTH = 256, 2048
EVICTION = {"policy": "StreamingLLM", "sink_tokens": SINKS, "window_tokens": WINDOW}
NONE = {"policy": "None"}
PROMPTS = [
    [(7 * place * place + (3 + seed) * place) % 900 + 5 for place in range(length)]
    for seed, length in enumerate((300, 700, 90, 513))
]


class Engine:
    """An engine whose scheduler is watched."""

    def __init__(self, model: str) -> None:
        self._llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=LENGTH,
            max_num_seqs=16,
            max_num_batched_tokens=BUDGET,
            block_size=BLOCK_SIZE,
            kv_cache_memory_bytes=16 << 20,
            enable_prefix_caching=True,
        )
        self._core: Any = self._llm.llm_engine.engine_core.engine_core
        self._changes = 0

    def change(self, **values: object) -> dict[str, Any]:
        """Apply a change as the runtime API would; gives the document."""
        self._changes += 1
        answer = self._core.kvserving_apply({**values, "change_id": str(self._changes)})
        if answer["outcome"] != "Applied":
            raise RuntimeError(answer)
        document: dict[str, Any] = answer["runtime"]
        return document

    def run(self, prompts: list[list[int]], tokens: int, prompt_too: bool) -> dict[str, Any]:
        """Serve prompts at once, greedily, and tell what the scheduler did meanwhile."""
        engine, scheduler = self._llm.llm_engine, self._core.scheduler
        [manager] = scheduler.kv_cache_manager.coordinator.single_type_managers
        evicted = self._evicted()
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=0,
            prompt_logprobs=0 if prompt_too else None,
        )
        for index, prompt in enumerate(prompts):
            engine.add_request(str(index), {"prompt_token_ids": prompt}, parameters)
        peaks: dict[str, int] = {}
        running, preempted, free, finished = 0, 0, manager.block_pool.num_gpu_blocks, {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    finished[int(output.request_id)] = output
            free = min(free, manager.block_pool.get_num_free_blocks())
            running = max(running, len(scheduler.running))
            for request in scheduler.running:
                blocks = manager.req_to_blocks.get(request.request_id, ())
                held = sum(not block.is_null for block in blocks)
                index = request.request_id.partition("-")[0]
                peaks[index] = max(peaks.get(index, 0), held)
                preempted = max(preempted, request.num_preemptions)
        return {
            "tokens": [list(finished[i].outputs[0].token_ids) for i in range(len(prompts))],
            "logprobs": [_logprobs(finished[i], prompt_too) for i in range(len(prompts))],
            "cached": [finished[i].num_cached_tokens for i in range(len(prompts))],
            "peaks": [peaks[str(i)] for i in range(len(prompts))],
            "running": running,
            "preempted": preempted,
            "free": free,
            "evicted": self._evicted() - evicted,
        }

    def _evicted(self) -> int:
        count: int = self._core.kvserving_describe()["counters"]["evicted_blocks"]
        return count


def _logprobs(output: Any, prompt_too: bool) -> list[float]:
    """Log-probability of each token, from the prompt's second on or from the first new one."""
    completion = output.outputs[0]
    rows = list(zip(completion.logprobs, completion.token_ids, strict=True))
    if prompt_too:
        rows = [*zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True), *rows]
    return [row[token].logprob for row, token in rows]


def reference(model: Any, tokens: list[int], evicts: bool) -> dict[str, list[Any]]:
    """Log-probabilities and greedy tokens of a model that never had a cache."""
    places = torch.arange(len(tokens))
    shown = places[None] <= places[:, None]
    if evicts:
        blocks = places // BLOCK_SIZE
        kept = blocks < -(-SINKS // BLOCK_SIZE)
        # The block in which the window of each token begins.
        begins = (places + 1 - WINDOW).div(BLOCK_SIZE, rounding_mode="floor")
        shown &= kept[None] | (blocks[None] >= begins[:, None])
    mask = torch.zeros(shown.shape).masked_fill(~shown, -torch.inf)
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), attention_mask=mask[None, None]).logits[0]
    scores = logits.float().log_softmax(-1)
    return {
        "logprobs": scores[:-1].gather(1, torch.tensor(tokens)[1:, None])[:, 0].tolist(),
        "greedy": scores.argmax(-1).tolist(),
    }


def main(path: str) -> dict[str, Any]:
    """Go through the caches."""
    engine = Engine(path)
    found: dict[str, Any] = {"prompts": PROMPTS}
    long = [[(11 * i * i + seed * i) % 900 + 5 for i in range(1000)] for seed in range(16)]
    found["none"] = engine.run(PROMPTS, 60, prompt_too=True)
    found["none_crowd"] = engine.run(long, 120, prompt_too=False)
    found["none_document"] = engine.change(max_scheduled_tokens=BUDGET)

    found["document"] = engine.change(eviction=EVICTION)
    found["evicting"] = engine.run(PROMPTS, 60, prompt_too=True)
    engine.change(max_scheduled_tokens=50)
    found["small_steps"] = engine.run(PROMPTS, 60, prompt_too=True)
    engine.change(max_scheduled_tokens=BUDGET)
    found["alone"] = engine.run(PROMPTS[1:2], 60, prompt_too=True)
    found["hit"] = engine.run(PROMPTS, 60, prompt_too=False)
    # Others take the blocks that were freed.
    found["crowd"] = engine.run(long, 120, prompt_too=False)
    grown = [*long[-1], *found["crowd"]["tokens"][-1], *range(5, 40)]
    found["grown"] = engine.run([grown], 60, prompt_too=False)
    found["grown_again"] = engine.run([grown], 60, prompt_too=False)
    model = LlamaForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for name, prompts in (("evicting", PROMPTS), ("grown", [grown])):
        for evicts in (True, False):
            found[f"{name}_{'masked' if evicts else 'whole'}"] = [
                reference(model, [*prompt, *tokens], evicts)
                for prompt, tokens in zip(prompts, found[name]["tokens"], strict=True)
            ]

    for dtype in ("int8", "int4"):
        engine.change(kv_cache_dtype=dtype, eviction=EVICTION)
        found[dtype] = engine.run(PROMPTS, 60, prompt_too=True)
        found[f"{dtype}_whole_context"] = engine.change(eviction=NONE)["effective"]
        found[f"{dtype}_none"] = engine.run(PROMPTS, 60, prompt_too=True)
    engine.change(kv_cache_dtype="auto")
    found["none_again"] = engine.run(PROMPTS, 60, prompt_too=True)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))  # noqa: T201
