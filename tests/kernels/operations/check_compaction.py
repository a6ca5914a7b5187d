"""Compacted tables show each token exactly the blocks that the policy shows it."""

import random

import pytest
import torch

from kvserving_kernels.eviction import StreamingLLM
from kvserving_kernels.ops.compaction import compact, cut, first_window_blocks


def shown(policy: StreamingLLM, size: int, table: list[int], position: int) -> list[int]:
    """Slots of the tokens that the one at `position` sees, itself included."""
    sinks, first = policy.sink_blocks(size), policy.first_window_block(position, size)
    return [
        table[token // size] * size + token % size
        for token in range(position + 1)
        if token // size < sinks or token // size >= first
    ]


def slots(table: torch.Tensor, size: int, length: int) -> list[int]:
    """Slots of the first tokens of a compacted table."""
    return [int(table[token // size]) * size + token % size for token in range(length)]


@pytest.mark.parametrize("seed", range(40))
def test_each_token_of_a_batch_reads_what_the_policy_shows_it(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.choice((4, 16))
    policy = StreamingLLM(chance.randrange(0, 3 * size), chance.randrange(1, 6 * size))
    counts = [chance.choice((0, 1, 1, chance.randrange(1, 9 * size))) for _ in range(6)]
    # Padding has neither tokens nor a context.
    lengths = [n + chance.randrange(0, 12 * size) if n else 0 for n in counts]
    width = max(1, -(-max(lengths) // size)) + 2
    tables = torch.randint(1, 10_000, (6, width), dtype=torch.int32)
    query_start = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)

    pieces = cut(policy, size, query_start, torch.tensor(lengths, dtype=torch.int32))
    table, compacted = compact(
        policy, size, tables[pieces.sequences], pieces.first_blocks, pieces.lengths
    )
    assert pieces.query_start[-1] == query_start[-1]
    assert (compacted <= policy.visible_tokens(size)).all()
    seen = {}
    for piece, (begin, end) in enumerate(
        zip(pieces.query_start[:-1].tolist(), pieces.query_start[1:].tolist(), strict=True)
    ):
        for token in range(begin, end):
            # As a causal kernel reads: the last query sees all, the one before it one less.
            length = int(compacted[piece]) - (end - 1 - token)
            seen[token] = slots(table[piece], size, length)
    expected = {}
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        for offset in range(count):
            expected[int(query_start[row]) + offset] = shown(
                policy, size, tables[row].tolist(), length - count + offset
            )
    assert seen == expected


def test_a_decode_step_is_the_same_without_cuts() -> None:
    policy, size = StreamingLLM(5, 40), 16
    lengths = torch.tensor([1, 16, 63, 64, 65, 200, 0], dtype=torch.int32)
    tables = torch.randint(1, 10_000, (7, 13), dtype=torch.int32)
    first = first_window_blocks(policy, size, lengths)
    table, compacted = compact(policy, size, tables, first, lengths)
    assert compacted.dtype == table.dtype == torch.int32
    for row, length in enumerate(lengths.tolist()):
        expected = shown(policy, size, tables[row].tolist(), length - 1)
        assert slots(table[row], size, int(compacted[row])) == expected


def test_short_contexts_stay_as_they_are() -> None:
    policy, size = StreamingLLM(16, 64), 16
    query_start, lengths = torch.tensor([0, 40, 41]), torch.tensor([40, 90])
    pieces = cut(policy, size, query_start, lengths)
    assert pieces.sequences.tolist() == [0, 1]
    assert pieces.query_start.tolist() == query_start.tolist()
    tables = torch.randint(1, 100, (2, 6), dtype=torch.int32)
    table, compacted = compact(policy, size, tables, pieces.first_blocks, pieces.lengths)
    assert compacted.tolist() == lengths.tolist()
    assert torch.equal(table, tables)
