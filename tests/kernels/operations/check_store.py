"""What a store leaves in the pages; run by test_operations.py where torch is."""

import itertools

import pytest
import torch

from kernelkit import IMPLEMENTATIONS, Cache, random_tokens, tokens_of
from kernelkit.cache import PADDING, POISON
from kvserving_kernels.errors import OperationError
from kvserving_kernels.formats import LAYOUTS, KGrouping, KVCacheDType, KVLayout
from kvserving_kernels.formats.parameters import MAXIMUM_VALUE
from kvserving_kernels.ops.quantize import new_counters
from kvserving_kernels.ops.registry import Implementation

FORMATS = list(LAYOUTS)
FAST = [Implementation.TORCH, Implementation.CPU, Implementation.TRITON]
ON_CPU = [Implementation.TORCH, Implementation.CPU]
REFERENCE = Implementation.REFERENCE

every_format = pytest.mark.parametrize("dtype", FORMATS)
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@pytest.mark.parametrize("implementation", FAST)
@pytest.mark.parametrize("head_size", [32, 64, 80, 128, 256])
@every_format
def test_bytes_are_those_of_the_reference(
    dtype: KVCacheDType, head_size: int, implementation: Implementation
) -> None:
    caches = [Cache.make(dtype, name, head_size=head_size) for name in (REFERENCE, implementation)]
    key, value = tokens_of(caches[0], 7)
    for cache in caches:
        cache.store(key, value, [3])
    assert torch.equal(caches[0].pages, caches[1].pages)


@pytest.mark.parametrize("implementation", FAST)
@every_format
def test_larger_blocks_and_full_ones_have_the_bytes_of_the_reference(
    dtype: KVCacheDType, implementation: Implementation
) -> None:
    caches = [
        Cache.make(dtype, name, block_size=128, head_size=32, kv_heads=1)
        for name in (REFERENCE, implementation)
    ]
    key, value = tokens_of(caches[0], 150)
    for cache in caches:
        cache.store(key, value, [5, 2])
    assert torch.equal(caches[0].pages, caches[1].pages)


@pytest.mark.parametrize("implementation", FAST)
@pytest.mark.parametrize(("k_bits", "v_bits"), [(2, 2), (2, 8), (4, 4), (4, 2), (8, 8)])
def test_a_layout_that_is_no_format_yet_has_the_bytes_of_the_reference(
    k_bits: int, v_bits: int, implementation: Implementation
) -> None:
    """What a new format may combine: nothing is known by the formats that there are."""
    for grouping in KGrouping:
        if grouping is KGrouping.PER_CHANNEL and k_bits == 8:
            continue
        layout = KVLayout(KVCacheDType.INT4, k_bits, v_bits, grouping)
        caches = [Cache.make(layout, name) for name in (REFERENCE, implementation)]
        key, value = tokens_of(caches[0], 40)
        for cache in caches:
            cache.store(key, value, [3, 1])
        assert torch.equal(caches[0].pages, caches[1].pages), grouping


@every_format
def test_codes_are_as_near_as_their_steps_allow(dtype: KVCacheDType) -> None:
    cache = Cache.make(dtype, Implementation.CPU)
    key, value = tokens_of(cache, 60)
    cache.store(key, value, [1, 6])
    layout = cache.page.layout
    for wanted, got, bits in zip(
        (key, value), cache.stored([1, 6], 60), (layout.k_bits, layout.v_bits), strict=True
    ):
        error = (got - wanted.float()).norm() / wanted.float().norm()
        # The range of a token is about five standard deviations; errors are evenly spread.
        assert 0 < error < {8: 0.01, 4: 0.12, 2: 0.6}[bits]


@pytest.mark.parametrize(
    ("implementation", "sizes"),
    [
        *itertools.product(ON_CPU, [(1,) * 70, (3,) * 24, (16,) * 5, (33, 37), (40, 1, 1, 28)]),
        (Implementation.TRITON, (3, 2, 4)),
        # Over the edge of a block, in one call and in two.
        (Implementation.TRITON, (20, 20)),
        (REFERENCE, (31, 5)),
    ],
)
@every_format
def test_chunk_sizes_agree_bit_for_bit(
    dtype: KVCacheDType, implementation: Implementation, sizes: tuple[int, ...]
) -> None:
    total = min(sum(sizes), 70)
    once, chunked = (Cache.make(dtype, implementation, kv_heads=1) for _ in range(2))
    key, value = tokens_of(once, total)
    blocks = [7, 0, 4]
    once.store(key, value, blocks)
    first = 0
    for size in sizes:
        end = min(first + size, total)
        chunked.store(key[first:end], value[first:end], blocks, first)
        first = end
    assert torch.equal(once.pages, chunked.pages)


@every_format
def test_codes_of_a_token_never_change_with_later_ones(dtype: KVCacheDType) -> None:
    cache = Cache.make(dtype, Implementation.CPU)
    key, value = tokens_of(cache, 64)
    cache.store(key[:20], value[:20], [2, 5])
    before = cache.stored([2, 5], 20)
    cache.store(key[20:], value[20:], [2, 5], 20)
    after = cache.stored([2, 5], 20)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


@every_implementation
@every_format
def test_only_the_slots_are_written(dtype: KVCacheDType, implementation: Implementation) -> None:
    cache = Cache.make(dtype, implementation, padding_bytes=48, blocks=4)
    key, value = tokens_of(cache, 6)
    key[4], value[4] = torch.nan, torch.inf
    slots = cache.slots([2], 0, 6)
    slots[4:] = -1
    counters = new_counters("cpu")
    cache.operations.store(cache.page, key, value, cache.pages, slots, counters)
    assert counters.tolist() == [0, 0]
    assert (cache.pages[[0, 1, 3]] == POISON).all()
    page = cache.page
    record = cache.pages[2].flatten(1)
    used = torch.zeros(page.record_bytes, dtype=torch.bool)
    for section, tokens in (
        (page.k_anchors, min(4, page.anchor_tokens)),
        (page.k_codes, 4 - min(4, page.anchor_tokens)),
        (page.k_params, 4),
        (page.v_codes, 4),
        (page.v_params, 4),
    ):
        used[section.offset_bytes : section.offset_bytes + tokens * section.row_bytes] = True
    assert (record[:, ~used] == POISON).all()
    outside = torch.ones_like(cache.memory, dtype=torch.bool)
    outside.as_strided(cache.pages.shape, cache.pages.stride()).fill_(False)
    assert outside.any()
    assert (cache.memory[outside] == PADDING).all()


@every_implementation
@every_format
def test_equal_values_are_kept(dtype: KVCacheDType, implementation: Implementation) -> None:
    cache = Cache.make(dtype, implementation, kv_heads=1, head_size=32)
    # Scales round up by a thirty-second at most; rotated, the values are no longer equal.
    share = 0.35 if cache.page.layout.v_rotated else 0.04
    for number in (0.0, 2.5, -3.0):
        key = torch.full((6, 1, 32), number)
        cache.store(key, key, [0])
        for stored in cache.stored([0], 6):
            assert stored.isfinite().all()
            assert (stored - number).abs().max() <= abs(number) * share


@every_implementation
@every_format
def test_what_is_not_finite_has_a_defined_result(
    dtype: KVCacheDType, implementation: Implementation
) -> None:
    odd, even = (Cache.make(dtype, implementation, kv_heads=1, head_size=32) for _ in range(2))
    key, value = (part.float() for part in tokens_of(odd, 6))
    replaced = (key.clone(), value.clone())
    for wrong, right in ((key, replaced[0]), (value, replaced[1])):
        wrong[1, 0, 3], right[1, 0, 3] = torch.nan, 0.0
        wrong[5, 0, 1], right[5, 0, 1] = torch.inf, MAXIMUM_VALUE
        wrong[5, 0, 2], right[5, 0, 2] = -torch.inf, -MAXIMUM_VALUE
        wrong[0, 0, 9], right[0, 0, 9] = 1e20, MAXIMUM_VALUE
    counters, none = new_counters("cpu"), new_counters("cpu")
    odd.store(key, value, [0], counters=counters)
    even.store(*replaced, [0], counters=none)
    assert torch.equal(odd.pages, even.pages)
    assert all(part.isfinite().all() for part in odd.stored([0], 6))
    # Three values that are not finite in keys and in values; with the large one, three too large.
    assert counters.tolist() == [6, 6]
    assert none.tolist() == [0, 0]


@every_implementation
def test_tiny_and_huge_ranges_keep_their_scale(implementation: Implementation) -> None:
    cache = Cache.make("int8", implementation, kv_heads=1, head_size=32)
    base = random_tokens(3, 1, 32, dtype=torch.float32)
    for factor in (1e-30, 1e-6, 1e3):
        cache.store(base * factor, base * factor, [0])
        for stored in cache.stored([0], 3):
            assert (stored / factor - base).abs().max() < base.abs().max() / 200


@every_format
def test_a_subnormal_range_is_zero(dtype: KVCacheDType) -> None:
    cache = Cache.make(dtype, Implementation.CPU, kv_heads=1, head_size=32)
    tiny = torch.full((6, 1, 32), 1e-42)
    cache.store(tiny, tiny, [0])
    assert all(part.abs().max() < 1e-4 for part in cache.stored([0], 6))


def test_tensors_that_do_not_fit_are_refused() -> None:
    cache = Cache.make("int8", Implementation.CPU)
    key, value = tokens_of(cache, 4)
    slots = cache.slots([0], 0, 4)
    with pytest.raises(OperationError, match=r"value: expected \[4, 2, 64\].*got \[3, 2, 64\]"):
        cache.operations.store(cache.page, key, value[:3], cache.pages, slots)
    with pytest.raises(OperationError, match="pages: expected uint8"):
        cache.operations.store(cache.page, key, value, cache.pages.float(), slots)
    # Heads inside tokens, as another memory layout of the engine would have it.
    mixed = cache.pages.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(OperationError, match="to be adjacent"):
        cache.operations.store(cache.page, key, value, mixed, slots)
    odd = Cache.make("int8", Implementation.CPU, padding_bytes=4).pages
    with pytest.raises(OperationError, match="to start at multiples of 16 bytes"):
        cache.operations.store(cache.page, key, value, odd, slots)
