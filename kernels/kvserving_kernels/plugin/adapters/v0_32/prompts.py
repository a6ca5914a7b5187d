"""Prompts by the FlashAttention that vLLM ships, where it has one for the GPU."""

import logging
from functools import cache

import torch

from kvserving_kernels.ops import expanded

logger = logging.getLogger("vllm.kvserving")

VERSION = 3
"""The one that was measured; the others' GPUs keep our own kernel."""


@cache
def use_flash_attention(head_size: int) -> None:
    """Have prompts of this process computed by it from now on."""
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

    version = get_flash_attn_version(head_size=head_size)
    if version == VERSION:
        expanded.use(_flash)
    else:
        logger.info("kvserving: prompts by our own kernel: FlashAttention is %s", version)


def _flash(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    most_queries: int,
    most_keys: int,
    scale: float,
    out: torch.Tensor,
) -> None:
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    flash_attn_varlen_func(
        query,
        keys,
        values,
        max_seqlen_q=most_queries,
        cu_seqlens_q=query_starts,
        max_seqlen_k=most_keys,
        cu_seqlens_k=key_starts,
        softmax_scale=scale,
        causal=True,
        out=out,
        fa_version=VERSION,
    )
