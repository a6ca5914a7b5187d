"""Probes in the engine core: what this engine takes, and the workers' private caches.

The scheduler and its blocks are not involved: a probe cannot take, fill or find a users' block.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from kvserving_kernels.errors import ProbeRefusedError
from kvserving_kernels.formats import LAYOUTS, NATIVE
from kvserving_kernels.plugin.adapters.v0_32.ranks import ask
from kvserving_kernels.plugin.adapters.v0_32.selection import torch_name
from kvserving_kernels.plugin.prober import Prober
from kvserving_kernels.plugin.probes import MAX_TOKENS, Limits


# No annotations: vLLM would convert the arguments to them, and validation is ours.
def begin(core, probe_id, document):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """`EngineCore.kvserving_probe_begin`."""
    return _prober(core).begin(probe_id, document)


def advance(core, probe_id):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """`EngineCore.kvserving_probe_advance`."""
    return _prober(core).advance(probe_id)


def end(core, probe_id):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """`EngineCore.kvserving_probe_end`."""
    _prober(core).end(probe_id)


def drop(core: Any, reason: str) -> None:
    """End a probe that runs, before something that it must not see or take memory from."""
    prober: Prober | None = getattr(core, "_kvserving_prober", None)
    if prober is not None:
        prober.drop(reason)


class CoreProbeEngine:
    """A running `EngineCore` as the prober sees it."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._config = core.vllm_config

    def limits(self) -> Limits:
        """What may be asked for; ProbeRefusedError on an engine that cannot run probes."""
        self._refuse_asleep()
        model = self._config.model_config
        document = self._core.kvserving_describe()
        live = document["effective"]["kv_cache_dtype"]
        reason = self._why_not(live)
        if reason is not None:
            raise ProbeRefusedError(f"no probes on this engine: {reason}")
        names = document["envelope"].get("kv_cache_dtype", {"values": ()})["values"]
        own = torch_name(model.dtype)
        return Limits(
            max_tokens=min(MAX_TOKENS, int(model.max_model_len)),
            vocabulary=int(model.get_vocab_size()),
            dtypes={live: live, **{name: own if name == "auto" else name for name in names}},
            live=live,
        )

    def open(self, dtype: str, tokens: int) -> None:
        """Make a private cache in each worker."""
        from kvserving_kernels.plugin.adapters.v0_32.private_cache import open_cache

        reasons = ask(self._core, partial(open_cache, dtype=dtype, tokens=tokens))
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is not None:
            self.close()
            raise ProbeRefusedError(reason)

    def feed(
        self, token_ids: Sequence[int], targets: Sequence[int], position: int, size: int
    ) -> list[float]:
        """Put tokens into the private caches; every rank computes, the first one answers."""
        from kvserving_kernels.plugin.adapters.v0_32.private_cache import feed_cache

        # It may have been put to sleep since the last slice.
        self._refuse_asleep()
        feed = partial(
            feed_cache, token_ids=token_ids, targets=targets, position=position, size=size
        )
        answers = ask(self._core, feed, together=True)
        found: list[float] = answers[0]
        return found

    def close(self) -> None:
        """Free the private caches."""
        from kvserving_kernels.plugin.adapters.v0_32.private_cache import close_cache

        ask(self._core, close_cache)

    def has_users(self) -> bool:
        """Whether the scheduler has requests."""
        return bool(self._core.scheduler.has_unfinished_requests())

    def page_size(self) -> tuple[int, int]:
        """Tokens per block, and elements per head."""
        config = self._config
        return int(config.cache_config.block_size), int(config.model_config.get_head_size())

    def most_tokens(self) -> int:
        """As many as the engine has room for in a step of its own."""
        return int(self._config.scheduler_config.max_num_batched_tokens)

    def _refuse_asleep(self) -> None:
        if self._core.model_executor.is_sleeping:
            raise ProbeRefusedError("the engine sleeps: its weights are not where they compute")

    def _why_not(self, live: str) -> str | None:
        """Reason why the model cannot be run beside the engine's own steps."""
        config, ranks = self._config, self._config.parallel_config
        model = config.model_config
        reasons = (
            ("pipeline parallelism is", ranks.pipeline_parallel_size > 1),
            ("context parallelism is", ranks.decode_context_parallel_size > 1),
            ("context parallelism is", ranks.prefill_context_parallel_size > 1),
            ("speculative decoding is", config.speculative_config is not None),
            ("KV connectors are", config.kv_transfer_config is not None),
            ("LoRA adapters are", config.lora_config is not None),
            ("prompt embeddings are", model.enable_prompt_embeds),
            ("multimodal models are", model.is_multimodal_model),
            ("encoder-decoder models are", model.is_encoder_decoder),
            ("multi-dimensional positions (M-RoPE) are", model.uses_mrope),
            (
                f"the KV format {live} is",
                live not in {*NATIVE, *LAYOUTS, torch_name(model.dtype)},
            ),
        )
        return next((f"{what} not supported" for what, found in reasons if found), None)


def _prober(core: Any) -> Prober:
    prober: Prober | None = getattr(core, "_kvserving_prober", None)
    if prober is None:
        prober = Prober(CoreProbeEngine(core), time.monotonic)
        core._kvserving_prober = prober
    return prober
