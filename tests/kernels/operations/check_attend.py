"""What an attend reads from the pages; run by test_operations.py where torch is."""

import pytest
import torch

from kernelkit import IMPLEMENTATIONS, Cache, attention, random_tokens, tokens_of
from kvserving_kernels.errors import OperationError
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.ops.registry import Implementation

FORMATS = list(LAYOUTS)
CPU, TRITON = Implementation.CPU, Implementation.TRITON

every_format = pytest.mark.parametrize("dtype", FORMATS)
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def _filled(cache: Cache, length: int, blocks: list[int], seed: int = 0) -> None:
    # Bytes do not depend on who stores them (check_store.py); this one is fast.
    key, value = tokens_of(cache, length, seed)
    filler = Cache(cache.page, CPU_OPERATIONS, cache.pages, cache.memory)
    filler.store(key, value, blocks)


CPU_OPERATIONS = Cache.make("int8", CPU).operations


def _expected(cache: Cache, query: torch.Tensor, length: int, blocks: list[int]) -> torch.Tensor:
    key, value = cache.stored(blocks, length)
    return attention(query, key, value, cache.page.head_size**-0.5)


@pytest.mark.parametrize(
    ("head_size", "kv_heads", "group"),
    [(64, 1, 3), (32, 2, 1), (128, 1, 4), (256, 1, 8), (80, 1, 1)],
)
@every_implementation
@every_format
def test_attention_is_dense_attention_on_the_stored_values(
    dtype: KVCacheDType, implementation: Implementation, head_size: int, kv_heads: int, group: int
) -> None:
    length, blocks = 45, [6, 1]
    cache = Cache.make(dtype, implementation, head_size=head_size, kv_heads=kv_heads)
    _filled(cache, length, blocks)
    query = random_tokens(2, kv_heads * group, head_size, 9, torch.float32)
    got = cache.attend(query, [(2, length, blocks)])
    torch.testing.assert_close(
        got.double(), _expected(cache, query, length, blocks), rtol=1e-4, atol=2e-4
    )
    # The last query alone takes the path of a decode step.
    alone = cache.attend(query[1:], [(1, length, blocks)])
    torch.testing.assert_close(alone, got[1:], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 31, 32, 33, 64])
@pytest.mark.parametrize("implementation", [CPU, Implementation.TORCH, Implementation.REFERENCE])
@every_format
def test_lengths_around_the_edges_of_blocks_and_anchors(
    dtype: KVCacheDType, implementation: Implementation, length: int
) -> None:
    cache = Cache.make(dtype, implementation, kv_heads=1, head_size=32)
    _filled(cache, length, [2, 0])
    query = random_tokens(length, 2, 32, 9, torch.float32)
    got = cache.attend(query, [(length, length, [2, 0])])
    expected = _expected(cache, query, length, [2, 0])
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=2e-4)


@every_format
def test_low_bits_stay_near_the_values_that_were_stored(dtype: KVCacheDType) -> None:
    cache = Cache.make(dtype, CPU, block_size=64)
    key, value = tokens_of(cache, 120)
    cache.store(key, value, [3, 1])
    query = torch.randn(4, 6, 64, generator=torch.Generator().manual_seed(5))
    got = cache.attend(query, [(4, 120, [3, 1])]).double()
    exact = attention(query, key, value, 64**-0.5)
    error = (got - exact).norm() / exact.norm()
    bound = {"int8": 0.02, "k8v4": 0.05, "int4": 0.1, "int4_hadamard": 0.1}.get(dtype, 0.6)
    assert error < bound


def test_rotation_and_center_help_where_channels_differ() -> None:
    errors = {}
    for dtype in ("int4", "int4_hadamard", "int2"):
        cache = Cache.make(dtype, CPU, block_size=64)
        key, value = tokens_of(cache, 64)
        cache.store(key, value, [0])
        errors[dtype] = float((cache.stored([0], 64)[0] - key.float()).norm())
    assert errors["int4_hadamard"] < errors["int4"] < errors["int2"]


@pytest.mark.parametrize("part", ["k_codes", "k_params", "v_codes", "v_params", "k_anchors"])
@every_implementation
@every_format
def test_poisoned_codes_change_the_output(
    dtype: KVCacheDType, implementation: Implementation, part: str
) -> None:
    cache = Cache.make(dtype, implementation, kv_heads=1, head_size=32)
    section = getattr(cache.page, part)
    if not section.rows:
        assert not cache.page.anchor_tokens
        return
    _filled(cache, 34, [4, 2])
    _filled(cache, 3, [5], seed=1)
    query = random_tokens(2, 1, 32, 9, torch.float32)
    sequences = [(1, 34, [4, 2]), (1, 3, [5])]
    before = cache.attend(query, sequences)
    record = cache.pages[4, 0].flatten()
    # The upper byte of the first parameter word, or the first byte of codes.
    place = section.offset_bytes + (1 if part.endswith("params") else 0)
    record[place] ^= 0x33 if part.endswith("params") else 0xFF
    after = cache.attend(query, sequences)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


@every_implementation
@every_format
def test_a_mixed_batch_equals_each_sequence_alone(
    dtype: KVCacheDType, implementation: Implementation
) -> None:
    # A decode step, a whole prompt, padding of length zero, a chunk behind a prefix, a decode step.
    sequences = [(1, 40, [1, 3]), (3, 3, [5]), (1, 0, [0]), (2, 34, [7, 6]), (1, 9, [2])]
    cache = Cache.make(dtype, implementation, kv_heads=1, head_size=32)
    for seed, (_, length, blocks) in enumerate(sequences):
        if length:
            _filled(cache, length, blocks, seed)
    query = random_tokens(8, 2, 32, 9, torch.float32)
    together = cache.attend(query, sequences)
    start = 0
    for sequence in sequences:
        part = slice(start, start + sequence[0])
        alone = cache.attend(query[part], [sequence])
        # A product that rotates a whole batch adds up in an order that depends on its size.
        slack = 10 if cache.page.layout.k_rotated else 1
        torch.testing.assert_close(together[part], alone, rtol=slack * 1e-5, atol=slack * 1e-6)
        start = part.stop
    assert (together[4] == 0).all()


@every_implementation
@every_format
def test_memory_that_nobody_wrote_is_never_read(
    dtype: KVCacheDType, implementation: Implementation
) -> None:
    outputs = []
    for fill in (0xFF, 0x00, 0x7F):
        cache = Cache.make(dtype, implementation, fill=fill, kv_heads=1, head_size=32)
        _filled(cache, 34, [1, 4])
        _filled(cache, 2, [5], seed=1)
        query = random_tokens(3, 1, 32, 9, torch.float32)
        outputs.append(cache.attend(query, [(2, 34, [1, 4]), (1, 2, [5])]))
    assert outputs[0].isfinite().all()
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@every_implementation
@every_format
def test_padded_pages_and_copied_blocks_read_alike(
    dtype: KVCacheDType, implementation: Implementation
) -> None:
    outputs = []
    query = random_tokens(1, 2, 32, 9, torch.float32)
    for padding_bytes in (0, 16, 48):
        cache = Cache.make(dtype, implementation, head_size=32, padding_bytes=padding_bytes)
        _filled(cache, 37, [1, 4])
        outputs.append(cache.attend(query, [(1, 37, [1, 4])]))
    # A block is copied byte by byte, a partly filled one too.
    for source, target in ((1, 6), (4, 0)):
        cache.pages[target] = cache.pages[source]
    cache.pages[[1, 4]] = 0xFF
    outputs.append(cache.attend(query, [(1, 37, [6, 0])]))
    assert all(torch.equal(outputs[0], output) for output in outputs[1:])


@every_format
def test_a_prefix_hit_equals_a_cold_run_bit_for_bit(dtype: KVCacheDType) -> None:
    cold, hit = (Cache.make(dtype, CPU) for _ in range(2))
    key, value = tokens_of(cold, 90)
    cold.store(key, value, [0, 1, 2])
    # The first request decoded token by token; another one shares its two full blocks.
    for token in range(64):
        hit.store(key[token : token + 1], value[token : token + 1], [6, 5], token)
    hit.store(key[64:], value[64:], [6, 5, 3], 64)
    query = random_tokens(26, 4, 64, 9)
    assert torch.equal(
        cold.attend(query, [(26, 90, [0, 1, 2])]), hit.attend(query, [(26, 90, [6, 5, 3])])
    )


@every_format
def test_a_query_sees_the_same_in_prefill_and_in_decode(dtype: KVCacheDType) -> None:
    whole, stepwise = (Cache.make(dtype, CPU, kv_heads=1, head_size=32) for _ in range(2))
    key, value = tokens_of(whole, 40)
    query = random_tokens(40, 2, 32, 9, torch.float32)
    whole.store(key, value, [0, 1])
    at_once = whole.attend(query, [(40, 40, [0, 1])])
    for token in range(40):
        part = slice(token, token + 1)
        stepwise.store(key[part], value[part], [0, 1], token)
        step = stepwise.attend(query[part], [(1, token + 1, [0, 1])])
        torch.testing.assert_close(step, at_once[part], rtol=1e-4, atol=1e-5)


@every_implementation
def test_outputs_have_the_dtype_of_the_queries(implementation: Implementation) -> None:
    cache = Cache.make("int4", implementation, kv_heads=1, head_size=32)
    _filled(cache, 5, [1])
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        query = random_tokens(1, 1, 32, 9, dtype)
        assert cache.attend(query, [(1, 5, [1])]).dtype is dtype


@every_format
def test_many_blocks_pass_in_parts(dtype: KVCacheDType) -> None:
    # Three times what is unpacked at a time.
    cache = Cache.make(dtype, CPU, block_size=128, head_size=256, kv_heads=3, blocks=10)
    _filled(cache, 1200, list(range(10)))
    query = random_tokens(2, 3, 256, 9, torch.float32)
    got = cache.attend(query, [(1, 1200, list(range(10))), (1, 130, [3, 2])])
    alone = cache.attend(query[1:], [(1, 130, [3, 2])])
    torch.testing.assert_close(got[1:], alone, rtol=1e-4, atol=1e-5)
    # As the chunk of two queries, which are not decoded but prefilled.
    pair = cache.attend(query[:1].repeat(2, 1, 1), [(2, 1200, list(range(10)))])
    torch.testing.assert_close(got[:1], pair[1:], rtol=1e-4, atol=1e-4)


def test_batches_that_do_not_fit_are_refused() -> None:
    cache = Cache.make("int8", CPU, kv_heads=2)
    with pytest.raises(OperationError, match="a multiple of 2 heads, 64"):
        cache.attend(torch.zeros(1, 3, 64), [(1, 1, [0])])
