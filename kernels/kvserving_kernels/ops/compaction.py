"""Block tables without the freed blocks, so that any attention kernel can read what is left.

Keys are stored rotated to their positions, so attention over the kept blocks side by side is
attention over the kept tokens. Within one prompt step, tokens whose windows begin in different
blocks must not share a table: the step is cut into pieces of one sequence each. Every piece ends
with its own newest token, as causal kernels expect.
"""

from dataclasses import dataclass

import torch

from kvserving_kernels.eviction import StreamingLLM


@dataclass(frozen=True)
class Pieces:
    """Where the sequences of a batch are cut; tensors have one entry per piece.

    `first_blocks` is the first block behind the sinks that a piece sees, `lengths` counts tokens
    from the start of the sequence, and `query_start` has one entry more, as batches have.
    """

    sequences: torch.Tensor
    first_blocks: torch.Tensor
    lengths: torch.Tensor
    query_start: torch.Tensor


def cut(
    policy: StreamingLLM, block_size: int, query_start: torch.Tensor, lengths: torch.Tensor
) -> Pieces:
    """Cut a batch, given on the host, so that all tokens of a piece see the same blocks."""
    counts = query_start.diff().long()
    ends = lengths.long()
    begins = ends - counts
    first = _first_window_block(policy, block_size, begins)
    # A row of padding has no tokens; it stays one piece.
    last = _first_window_block(policy, block_size, torch.maximum(ends - 1, begins))
    pieces = last - first + 1
    sequences = torch.arange(len(pieces)).repeat_interleave(pieces)
    offsets = torch.arange(len(sequences)) - (pieces.cumsum(0) - pieces)[sequences]
    first_blocks = first[sequences] + offsets
    # The first position whose window begins in a piece's first block.
    turns = first_blocks * block_size + policy.window_tokens - 1
    starts = torch.where(offsets == 0, begins[sequences], turns)
    piece_ends = torch.minimum(ends[sequences], turns + block_size)
    tokens = query_start[:-1].long()[sequences] + starts - begins[sequences]
    return Pieces(
        sequences,
        first_blocks,
        piece_ends,
        torch.cat((tokens, query_start[-1:].long())).to(query_start.dtype),
    )


def first_window_blocks(
    policy: StreamingLLM, block_size: int, lengths: torch.Tensor
) -> torch.Tensor:
    """First block behind the sinks that the newest token of each sequence sees."""
    return _first_window_block(policy, block_size, lengths - 1)


def compact(
    policy: StreamingLLM,
    block_size: int,
    block_table: torch.Tensor,
    first_blocks: torch.Tensor,
    lengths: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tables [sequences, blocks] and lengths with the blocks between sinks and window left out."""
    sinks = policy.sink_blocks(block_size)
    left_out = (first_blocks - sinks).clamp_min(0)
    columns = torch.arange(block_table.shape[1], device=block_table.device)
    sources = columns + left_out[:, None] * (columns >= sinks)
    # What lies behind the last block is never read.
    sources.clamp_max_(block_table.shape[1] - 1)
    compacted = lengths - left_out.to(lengths.dtype) * block_size
    return block_table.gather(1, sources.long()), compacted


def _first_window_block(
    policy: StreamingLLM, block_size: int, positions: torch.Tensor
) -> torch.Tensor:
    starts = (positions + 1 - policy.window_tokens).div(block_size, rounding_mode="floor")
    return starts.clamp_min(policy.sink_blocks(block_size))
