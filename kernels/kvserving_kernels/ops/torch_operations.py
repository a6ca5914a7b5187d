"""Store and attend in vectorized torch: what a CPU takes where nothing can be compiled.

Decode never forms keys or values. Scales and zero points are folded into scores and probabilities,
so that a code is only unpacked and multiplied. Blocks of all sequences go through together, a
bounded number at a time.
"""

from collections.abc import Iterator
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.pages import Batch, check_attend, check_store, delivered
from kvserving_kernels.ops.quantize import sanitize
from kvserving_kernels.ops.records import (
    Coded,
    anchor_keys,
    coded_keys,
    coded_values,
    encode,
    keys_and_values,
    rows,
    stored_centers,
)
from kvserving_kernels.ops.rotation import rotate, rotate_back, rotate_queries

CHUNK_ELEMENTS: Final = 1 << 21
"""Codes unpacked at a time: 8 MiB of 32-bit floats. Fewer cost more calls than caches save."""


class TorchOperations(Operations):
    """The vectorized implementation; the prefill of the compiled one too."""

    def store(
        self,
        page: PageLayout,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: torch.Tensor,
        slots: torch.Tensor,
        counters: torch.Tensor | None = None,
    ) -> None:
        """See `ops.registry.Operations.store`."""
        records = check_store(page, key, value, pages, slots)
        real = slots >= 0
        if not real.all():
            key, value, slots = key[real], value[real], slots[real]
        if not len(slots):
            return
        key, value = sanitize(key, counters), sanitize(value, counters)
        if page.layout.k_rotated:
            key = rotate(key)
        if page.layout.v_rotated:
            value = rotate(value)
        blocks, places = slots // page.block_size, slots % page.block_size
        codes, words = encode(value, page.layout.v_bits)
        rows(page.v_codes, records)[blocks, :, places] = codes
        rows(page.v_params, records)[blocks, :, places] = words
        if not page.anchor_tokens:
            codes, words = encode(key, page.layout.k_bits)
            rows(page.k_codes, records)[blocks, :, places] = codes
            rows(page.k_params, records)[blocks, :, places] = words
            return
        _store_anchored(page, key, records, blocks, places)

    def attend(
        self,
        page: PageLayout,
        query: torch.Tensor,
        pages: torch.Tensor,
        batch: Batch,
        scale: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `ops.registry.Operations.attend`."""
        records = check_attend(page, query, pages, batch)
        queries = rotate_queries(query) if page.layout.k_rotated else query.float()
        output = torch.zeros_like(queries)
        counts = batch.query_start.diff()
        lengths = batch.context_lengths.tolist()
        single = ((counts == 1) & (batch.context_lengths > 0)).nonzero()[:, 0]
        if len(single):
            tokens = batch.query_start[:-1][single]
            output[tokens] = _decode(
                page,
                queries[tokens] * scale,
                records,
                batch.block_table[single],
                batch.context_lengths[single],
            )
        for sequence in (counts > 1).nonzero()[:, 0].tolist():
            start, end = batch.query_start[sequence : sequence + 2].tolist()
            length = lengths[sequence]
            used = batch.block_table[sequence, : -(-length // page.block_size)]
            output[start:end] = prefill(
                page, queries[start:end], records.index_select(0, used), length, scale
            )
        output = rotate_back(output) if page.layout.v_rotated else output
        return delivered(output.to(query.dtype), out)


def _store_anchored(
    page: PageLayout,
    key: torch.Tensor,
    records: torch.Tensor,
    blocks: torch.Tensor,
    places: torch.Tensor,
) -> None:
    words_view = rows(page.k_params, records)
    early = places < page.anchor_tokens
    if early.any():
        codes, words = encode(key[early], 8)
        rows(page.k_anchors, records)[blocks[early], :, places[early]] = codes
        words_view[blocks[early], :, places[early]] = words
    late = ~early
    if not late.any():
        return
    key, blocks, places = key[late], blocks[late], places[late]
    # A run needs the codes of the run before it. So each block's first run goes first, then each
    # block's second run, and so on; a decode step is one such wave.
    runs = places // page.anchor_tokens
    _, which = blocks.unique(return_inverse=True)
    first = runs.new_full((int(which.max()) + 1,), page.block_size)
    waves = runs - first.scatter_reduce_(0, which, runs, "amin")[which]
    for wave in range(int(waves.max()) + 1):
        now = waves == wave
        touched, which = blocks[now].unique(return_inverse=True)
        centers = stored_centers(page, records.index_select(0, touched))
        centered = key[now] - centers[which, :, runs[now] - 1]
        codes, words = encode(centered, page.layout.k_bits)
        rows(page.k_codes, records)[blocks[now], :, places[now] - page.anchor_tokens] = codes
        words_view[blocks[now], :, places[now]] = words


def prefill(
    page: PageLayout, queries: torch.Tensor, records: torch.Tensor, length: int, scale: float
) -> torch.Tensor:
    """Attention of the last tokens [tokens, heads, channels] of one sequence."""
    keys, values = (
        # [blocks, heads, tokens, channels] to [heads, length, channels]
        part.transpose(0, 1).flatten(1, 2)[:, :length]
        for part in keys_and_values(page, records)
    )
    count = len(queries)
    mask = None
    if count != length:
        mask = torch.ones(count, length, dtype=torch.bool, device=queries.device)
        mask = mask.tril(length - count)
    attended = scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)


def _decode(
    page: PageLayout,
    queries: torch.Tensor,
    records: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Attention of one scaled query per sequence: [sequences, heads, channels]."""
    sequences, heads, channels = queries.shape
    kv_heads, size = records.shape[1], page.block_size
    counts = (lengths + size - 1) // size
    used = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
    owner, index = used.nonzero().unbind(1)
    blocks = block_table[owner, index]
    left = (lengths[owner] - index * size)[:, None]
    # [blocks, 1, 1, tokens]
    valid = (torch.arange(size, device=left.device) < left)[:, None, None]
    # By block, not by byte: a plain index would copy single bytes.
    coded = records.index_select(0, blocks)
    grouped = queries.view(sequences, kv_heads, heads // kv_heads, channels)

    chunk = max(1, CHUNK_ELEMENTS // (kv_heads * size * channels))
    scores = torch.cat(
        [_scores(page, grouped[owner[part]], coded[part]) for part in _parts(len(blocks), chunk)]
    )
    # A sequence's scores side by side: [sequences, kv_heads, group, blocks, tokens]
    side = scores.new_full((sequences, used.shape[1], *scores.shape[1:]), -torch.inf)
    side[owner, index] = torch.where(valid, scores, -torch.inf)
    side = side.permute(0, 2, 3, 1, 4)
    weights = side.flatten(-2).softmax(-1).view(side.shape)
    weights = weights.permute(0, 3, 1, 2, 4)[owner, index]
    output = torch.zeros_like(grouped)
    for part in _parts(len(blocks), chunk):
        values = coded_values(page, coded[part])
        output.index_add_(0, owner[part], _weighted(values, weights[part], valid[part]))
    return output.view(queries.shape)


def _parts(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, start + size)


def _scores(page: PageLayout, queries: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """Scores [blocks, kv_heads, group, tokens] of queries [blocks, kv_heads, group, channels]."""
    late = _products(queries, coded_keys(page, records))
    if not page.anchor_tokens:
        return late
    anchors = anchor_keys(page, records)
    early = _products(queries, anchors)
    # The product with a center is the sum of the means of products over all runs before.
    runs = late.unflatten(-1, (-1, page.anchor_tokens))
    means = torch.cat((early.mean(-1, keepdim=True), runs[..., :-1, :].mean(-1)), -1)
    runs += means.cumsum(-1)[..., None]
    return torch.cat((early, late), -1)


def _products(queries: torch.Tensor, keys: Coded) -> torch.Tensor:
    products = queries @ keys.codes.mT
    if keys.zeros is not None:
        products -= queries.sum(-1, keepdim=True) * keys.zeros[..., None, :]
    return products.mul_(keys.scales[..., None, :])


def _weighted(values: Coded, weights: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Sums [blocks, kv_heads, group, channels] of values by weights [..., group, tokens]."""
    # What was never written may have any scale: its weight of zero does not undo a NaN.
    scaled = weights * torch.where(valid, values.scales[..., None, :], 0.0)
    sums = scaled @ values.codes
    if values.zeros is not None:
        sums -= (scaled * values.zeros[..., None, :]).sum(-1, keepdim=True)
    return sums
