"""In a worker: a small KV cache of its own for a probe, in any format, beside the users' cache.

The model's layers hold their backend, its implementation and their pages as attributes. A forward
pass of a probe runs with those of its private cache, between two engine steps, and puts the users'
back. Block ids count from zero and follow the tokens, so a token's slot is its position.

Relied on: functions of `v1.worker.gpu.attn_utils` (which work on layers alone, for both versions of
the runner), `get_kv_cache_groups`, `get_kv_cache_config_from_groups`, `resolve_kv_cache_layout`,
`set_forward_context`, and `model` and `device` of a runner.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from kvserving_kernels.errors import ProbeRefusedError
from kvserving_kernels.eviction import NO_EVICTION
from kvserving_kernels.plugin.adapters.v0_32.selection import set_cache
from kvserving_kernels.plugin.adapters.v0_32.switch import Cache, cache_of, give_backend
from kvserving_kernels.plugin.memory import free_host_bytes

_SWAPPED: Final = (
    "attn_backend", "impl", "kv_cache", "kv_cache_dtype", "kv_cache_torch_dtype", "query_quant",
    "isa",
)  # fmt: skip
"""Attributes of a layer that depend on the format; not every backend sets the last."""

_MISSING: Final = object()

MEMORY_SHARE: Final = 0.5
"""Most of the free memory that a private cache may take."""

LOGIT_ROWS: Final = 128
"""Rows of the vocabulary's size that are held at a time."""


def open_cache(worker: Any, dtype: str, tokens: int) -> str | None:
    """Make a worker's private cache; the answer is a reason why there is none."""
    close_cache(worker)
    try:
        worker.model_runner.kvserving_private = PrivateCache(worker.model_runner, dtype, tokens)
    except ProbeRefusedError as error:
        return str(error)
    return None


def feed_cache(
    worker: Any, token_ids: Sequence[int], targets: Sequence[int], position: int, size: int
) -> list[float]:
    """Put tokens into a worker's private cache; log-probabilities of the targets."""
    cache: PrivateCache = worker.model_runner.kvserving_private
    with torch.inference_mode():
        return cache.feed(token_ids, targets, position, size)


def close_cache(worker: Any) -> None:
    """Free a worker's private cache."""
    if getattr(worker.model_runner, "kvserving_private", None) is None:
        return
    worker.model_runner.kvserving_private = None
    torch.accelerator.empty_cache()


class PrivateCache:
    """Pages for the tokens of one probe, and the attributes with which layers use them."""

    def __init__(self, runner: Any, dtype: str, tokens: int) -> None:
        self._model, self._device = runner.model, runner.device
        self._config = _configured(runner.vllm_config, dtype)
        self._layers = _attention_layers(self._config)
        before = _read(self._layers)
        try:
            # Every token of a probe is kept, whatever the engine drops from users' requests.
            cache = Cache(dtype, NO_EVICTION)
            if cache != cache_of(runner.vllm_config):
                self._give_backends(cache)
            self._lay_out(tokens)
            self._own = _read(self._layers)
        finally:
            _write(self._layers, before)

    def feed(
        self, token_ids: Sequence[int], targets: Sequence[int], position: int, size: int
    ) -> list[float]:
        """Put tokens into the cache, `size` at a time; log-probabilities of the targets."""
        found = []
        with self._swapped():
            for start in range(0, len(token_ids), size):
                part = slice(start, start + size)
                hidden = self._forward(token_ids[part], position + start)
                found += self._score(hidden, targets[part])
        return torch.cat(found).tolist() if found else []

    def _give_backends(self, cache: Cache) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

        name, model = self._config.cache_config.cache_dtype, self._config.model_config
        torch_dtype = kv_cache_dtype_str_to_dtype(name, model)
        with set_current_vllm_config(self._config):
            for layer in self._layers.values():
                give_backend(layer, cache, name, torch_dtype, self._config)

    def _lay_out(self, tokens: int) -> None:
        """Allocate pages, as the engine would for a cache of this size."""
        from vllm.config import set_current_vllm_config
        from vllm.v1.worker.gpu import attn_utils

        self._plan = _plan(self._config, tokens)
        needed, free = self._plan.kv_cache_tensors[0].size, _free_bytes(self._device)
        if needed > MEMORY_SHARE * free:
            raise ProbeRefusedError(
                f"a private cache of {tokens} tokens takes {needed} bytes, and at most half of the "
                f"{free} that are free may be taken: ask for fewer tokens, or later"
            )
        with set_current_vllm_config(self._config):
            self._groups, _, kernel_sizes = attn_utils.init_attn_backend(
                self._plan, self._config, self._device
            )
            attn_utils.init_kv_cache(
                self._layers,
                self._plan,
                self._device,
                kernel_sizes,
                self._config,
                attn_groups=[group for groups in self._groups for group in groups],
            )
        self._block_table = torch.arange(
            self._plan.num_blocks, dtype=torch.int32, device=self._device
        )[None]

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        before = _read(self._layers)
        try:
            _write(self._layers, self._own)
            yield
        finally:
            _write(self._layers, before)

    def _forward(self, token_ids: Sequence[int], position: int) -> torch.Tensor:
        """Hidden states of tokens that follow the first `position` ones."""
        from vllm.forward_context import set_forward_context

        count, end = len(token_ids), position + len(token_ids)
        positions = torch.arange(position, end, dtype=torch.int64, device=self._device)
        metadata = self._metadata(count, end, positions)
        with set_forward_context(
            metadata,
            self._config,
            num_tokens=count,
            slot_mapping=dict.fromkeys(self._layers, positions),
        ):
            hidden: torch.Tensor = self._model(
                # The dtype of the runners' buffers, for which the model was compiled.
                input_ids=torch.tensor(token_ids, dtype=torch.int32, device=self._device),
                positions=positions,
                intermediate_tensors=None,
                inputs_embeds=None,
            )
        return hidden

    def _metadata(self, count: int, end: int, positions: torch.Tensor) -> Mapping[str, Any]:
        from vllm.v1.worker.gpu import attn_utils

        starts = torch.tensor([0, count], dtype=torch.int32)
        lengths = torch.tensor([end], dtype=torch.int32)
        metadata: Mapping[str, Any] = attn_utils.build_attn_metadata(
            attn_groups=self._groups,
            num_reqs=1,
            num_tokens=count,
            query_start_loc_gpu=starts.to(self._device),
            query_start_loc_cpu=starts,
            max_query_len=count,
            seq_lens=lengths.to(self._device),
            max_seq_len=end,
            block_tables=[self._block_table],
            slot_mappings=positions[None],
            kv_cache_config=self._plan,
            seq_lens_cpu_upper_bound=lengths,
            positions=positions,
            is_prefilling=torch.tensor([count > 1]),
        )
        return metadata

    def _score(self, hidden: torch.Tensor, targets: Sequence[int]) -> list[torch.Tensor]:
        """Log-probability of each target after the token in its row."""
        found = []
        for start in range(0, len(targets), LOGIT_ROWS):
            rows = slice(start, start + LOGIT_ROWS)
            logits = self._model.compute_logits(hidden[rows])
            # With tensor parallelism only the first rank may have them.
            if logits is not None:
                wanted = torch.tensor(targets[rows], device=self._device)[:, None]
                scores = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
                found.append(scores.gather(1, wanted)[:, 0])
        return found


def _configured(config: Any, dtype: str) -> Any:
    """A configuration for another format, of which nothing leaves; the engine's own stays."""
    own = copy.copy(config)
    own.cache_config = copy.copy(config.cache_config)
    set_cache(own, dtype, NO_EVICTION)
    return own


def _attention_layers(config: Any) -> dict[str, Any]:
    """Layers by name; ProbeRefusedError where one is of a kind that has no private cache."""
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    layers = {
        name: layer
        for name, layer in config.compilation_config.static_forward_context.items()
        if isinstance(layer, AttentionLayerBase)
    }
    for name, layer in layers.items():
        plain = isinstance(layer, Attention) and layer.attn_type == "decoder"
        if not plain or layer.kv_sharing_target_layer_name is not None:
            raise ProbeRefusedError(f"probes need full attention in every layer; {name} has other")
    return layers


def _plan(config: Any, tokens: int) -> Any:
    """The engine's own plan of a cache for so many tokens, recorded layout included."""
    from vllm.v1.attention.backends.utils import (
        get_supported_kv_cache_layouts,
        resolve_kv_cache_layout,
    )
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.worker.gpu import attn_utils

    specs = attn_utils.get_kv_cache_spec(config)
    groups = get_kv_cache_groups(config, specs)
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        raise ProbeRefusedError("probes need a model whose layers all have full attention alike")
    layers = config.compilation_config.static_forward_context
    backends = {layers[name].get_attn_backend() for name in specs}
    names = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
    resolve_kv_cache_layout(config, [names], specs.values())
    config.cache_config.num_gpu_blocks_override = -(-tokens // groups[0].kv_cache_spec.block_size)
    return get_kv_cache_config_from_groups(config, groups, available_memory=0)


def _free_bytes(device: Any) -> int:
    if device.type == "cpu":
        return free_host_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def _read(layers: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: {attribute: getattr(layer, attribute, _MISSING) for attribute in _SWAPPED}
        for name, layer in layers.items()
    }


def _write(layers: Mapping[str, Any], attributes: Mapping[str, Mapping[str, Any]]) -> None:
    for name, layer in layers.items():
        for attribute, value in attributes[name].items():
            if value is not _MISSING:
                setattr(layer, attribute, value)
            elif hasattr(layer, attribute):
                delattr(layer, attribute)
