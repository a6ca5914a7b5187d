"""Serves the same prompts under circumstances that must not matter, and prints the results as JSON.

Usage: in_process.py MODEL [crowd] FORMAT..., in the engine's Python. Inside the process the
engine's pages can be changed behind its back.
"""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.formats import layout_of
from kvserving_kernels.ops.pages import records
from kvserving_kernels.ops.records import rows
from kvserving_kernels.plugin.adapters.v0_32.backend import Int8Backend, KVFormatBackend

BLOCK_SIZE, BUDGET, LENGTH = 64, 256, 1024
LONG = [(7 * place * place + 3 * place) % 900 + 5 for place in range(2 * BUDGET + 40)]
CROWD = [[(token + 31 * seed) % 900 + 5 for token in LONG[:200]] for seed in range(16)]
COMPANY = [prompt[: 40 + 30 * place] for place, prompt in enumerate(CROWD[:6])]
CROWD_TOKENS, ALONE = 300, 4
SEEDS = (7, 8, 9)
PADDING_BYTES = 48


class Engine:
    """An engine in this process."""

    def __init__(self, model: str) -> None:
        self._llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=LENGTH,
            max_num_seqs=16,
            max_num_batched_tokens=BUDGET,
            block_size=BLOCK_SIZE,
            # A little more than one request of the longest length in 32 bits.
            kv_cache_memory_bytes=9 << 18,
            enable_prefix_caching=True,
            # An engine that starts in a format of ours has its compiled kernels.
            additional_config={"kvserving": {"kv_cache_dtype": "int8"}},
        )
        self._core: Any = self._llm.llm_engine.engine_core.engine_core
        self._changes = 0

    def change(self, **values: object) -> None:
        """Apply a change as the runtime API would."""
        self._changes += 1
        answer = self._core.kvserving_apply({**values, "change_id": str(self._changes)})
        if answer["outcome"] != "Applied":
            raise RuntimeError(answer)

    def forget(self) -> None:
        """Drop every cached prefix."""
        self._core.scheduler.reset_prefix_cache()

    def poison(self, dtype: str) -> None:
        """Flip bits of every stored value's codes."""
        config = self._core.vllm_config.compilation_config
        for layer in config.static_forward_context.values():
            page = layout_of(dtype).page(BLOCK_SIZE, layer.head_size)
            rows(page.v_codes, records(layer.kv_cache, page)).bitwise_xor_(0x55)

    def mistake_block(self) -> None:
        """Have one of the cached blocks hold what another one holds, as if pages were mixed up."""
        runner = self._core.model_executor.driver_worker.model_runner
        first, *_, last = self._cached_blocks()
        for pages in runner.kv_caches:
            pages[last] = pages[first]

    def _cached_blocks(self) -> list[int]:
        pool = self._core.scheduler.kv_cache_manager.block_pool
        return [block.block_id for block in pool.blocks if block.block_hash is not None]

    def move_cached(self) -> int:
        """Copy every cached block elsewhere and back, as vLLM copies blocks; returns how many.

        What they held is wiped out in between.
        """
        scheduler, runner = (
            self._core.scheduler,
            self._core.model_executor.driver_worker.model_runner,
        )
        pool = scheduler.kv_cache_manager.block_pool
        used = self._cached_blocks()
        free = [
            block.block_id
            for block in pool.blocks
            if block.block_hash is None and block.ref_cnt == 0 and not block.is_null
        ][: len(used)]
        blocks = scheduler.kv_cache_config.num_blocks
        copy_kv_cache_blocks_inplace(runner.kv_caches, blocks, list(zip(used, free, strict=True)))
        for pages in runner.kv_caches:
            pages[used] = 0xFF
        copy_kv_cache_blocks_inplace(runner.kv_caches, blocks, list(zip(free, used, strict=True)))
        return len(used)

    def block_strides(self) -> list[int]:
        """Bytes between the blocks of each layer."""
        config = self._core.vllm_config.compilation_config
        return [layer.kv_cache.stride(0) for layer in config.static_forward_context.values()]

    def spoil(self, spoiled: bool) -> None:
        """Have the first key of each step and layer hold a NaN and a number that is too large."""
        config = self._core.vllm_config.compilation_config
        for layer in config.static_forward_context.values():
            if spoiled:
                layer.impl.do_kv_cache_update = partial(_spoiled, layer.impl.do_kv_cache_update)
            else:
                del layer.impl.do_kv_cache_update

    def counted(self) -> dict[str, float]:
        """What the runtime document counts."""
        counters: dict[str, float] = self._core.kvserving_describe()["counters"]
        return counters

    def probe(self, token_ids: list[int], as_dtype: str | None = None) -> list[float]:
        """Log-probabilities of tokens from the second on, by a probe."""
        wanted = {} if as_dtype is None else {"as_dtype": as_dtype}
        document = {"token_ids": token_ids, "form": "prefill", **wanted}
        answer = self._core.kvserving_probe_begin("probe", document)
        while answer["outcome"] == "Running":
            answer = self._core.kvserving_probe_advance("probe")
        logprobs: list[float] = answer["result"]["logprobs"][1:]
        return logprobs

    def run(self, prompts: list[list[int]], tokens: int, **parameters: Any) -> dict[str, list[Any]]:
        """Serve prompts at once; by prompt, the answers, their scores, and what was cached."""
        sampling = SamplingParams(
            max_tokens=tokens, ignore_eos=True, logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **{"temperature": 0.0, **parameters},
        )  # fmt: skip
        engine = self._llm.llm_engine
        for index, prompt in enumerate(prompts):
            engine.add_request(str(index), {"prompt_token_ids": prompt}, sampling)
        finished, preempted = {}, 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    finished[int(output.request_id)] = output
            requests = self._core.scheduler.requests.values()
            preempted = max([preempted, *(request.num_preemptions for request in requests)])
        outputs = [finished[index] for index in range(len(prompts))]
        return {
            "tokens": [[list(each.token_ids) for each in o.outputs] for o in outputs],
            "logprobs": [[_logprobs(each) for each in o.outputs] for o in outputs],
            "cached": [o.num_cached_tokens for o in outputs],
            "preempted": [preempted],
        }


def _spoiled(update: Any, layer: Any, key: Any, *arguments: Any) -> None:
    key = key.clone()
    key[0, 0, :2] = key.new_tensor([math.nan, -1e38])
    update(layer, key, *arguments)


@contextmanager
def padded_pages() -> Iterator[None]:
    """Have caches that are laid out meanwhile with bytes behind each page that are nobody's."""
    backend: Any = KVFormatBackend
    original = vars(backend)["customize_spec"]

    def customize_spec(cls: Any, spec: Any) -> Any:
        found = original.__func__(cls, spec)
        return replace(found, page_size_padded=found.unpadded_page_size_bytes + PADDING_BYTES)

    backend.customize_spec = classmethod(customize_spec)
    try:
        yield
    finally:
        backend.customize_spec = original


def _logprobs(completion: Any) -> list[float]:
    pairs = zip(completion.logprobs, completion.token_ids, strict=True)
    return [row[token].logprob for row, token in pairs]


def circumstances(engine: Engine, dtype: str) -> dict[str, Any]:
    """Serve in one format."""
    engine.change(kv_cache_dtype=dtype)
    found = {"cold": engine.run([LONG], 24)}
    found["hit"] = engine.run([LONG], 24)
    found["strides"] = {"dense": engine.block_strides()}
    found["moved"] = {"blocks": [engine.move_cached()], **engine.run([LONG], 24)}
    engine.poison(dtype)
    found["poisoned"] = engine.run([LONG], 24)
    engine.forget()
    found["mistaken"] = mistaken(engine)
    engine.change(max_scheduled_tokens=48)
    found["small_chunks"] = engine.run([LONG], 24)
    engine.change(max_scheduled_tokens=BUDGET)
    engine.forget()
    found["sampled_together"] = engine.run([LONG[:100]], 24, n=3, temperature=0.8, seed=SEEDS[0])
    alone = [engine.run([LONG[:100]], 24, temperature=0.8, seed=seed) for seed in SEEDS]
    found["sampled_alone"] = {
        name: [[each[name][0][0] for each in alone]] for name in ("tokens", "logprobs")
    }
    engine.forget()
    found["in_company"] = engine.run(COMPANY, 24)
    engine.forget()
    each_alone = [engine.run([prompt], 24) for prompt in COMPANY]
    found["in_no_company"] = {
        name: [each[name][0] for each in each_alone] for name in ("tokens", "logprobs")
    }
    engine.forget()
    found["probed"] = {"live": engine.probe(LONG), "auto": engine.probe(LONG, "auto")}
    found["counted"] = {"before": [engine.counted()]}
    engine.spoil(True)
    engine.run([LONG[:BUDGET]], 4)
    engine.spoil(False)
    engine.forget()
    found["counted"]["after"] = [engine.counted()]
    with padded_pages():
        engine.change(kv_cache_dtype="auto")
        engine.change(kv_cache_dtype=dtype)
    found["strides"]["padded"] = engine.block_strides()
    found["padded"] = engine.run([LONG], 24)
    found["padded_moved"] = {"blocks": [engine.move_cached()], **engine.run([LONG], 24)}
    return found


def mistaken(engine: Engine) -> dict[str, Any]:
    """Serve with one wrong block; leaves nothing cached."""
    engine.run([LONG], 1)
    engine.mistake_block()
    found = engine.run([LONG], 24)
    engine.forget()
    return found


def crowded(engine: Engine, dtype: str) -> dict[str, Any]:
    """Serve more requests than the cache holds, and some of them alone."""
    engine.change(kv_cache_dtype=dtype)
    found = {"cold": engine.run([LONG], 24)}
    engine.forget()
    found["mistaken"] = mistaken(engine)
    found["crowd"] = engine.run(CROWD, CROWD_TOKENS)
    engine.forget()
    engine.change(max_active_seqs=1)
    found["alone"] = engine.run(CROWD[-ALONE:], CROWD_TOKENS)
    engine.change(max_active_seqs=16)
    return found


def unequal_heads() -> str:
    """What is said of a layer whose values have another size than its keys."""
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=2, head_size=64, head_size_v=128, dtype=torch.bfloat16
    )
    try:
        Int8Backend.customize_spec(spec)
    except UnsupportedEngineError as error:
        return str(error)
    return ""


def main(model: str, dtypes: list[str]) -> None:
    """Print what was found, by format."""
    engine = Engine(model)
    serve = crowded if dtypes[:1] == ["crowd"] else circumstances
    found = {dtype: serve(engine, dtype) for dtype in dtypes if dtype != "crowd"}
    engine.change(kv_cache_dtype="auto")
    found["auto"] = {"probed": {"live": engine.probe(LONG)}}
    found["unequal_heads"] = {"refused": unequal_heads()}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
