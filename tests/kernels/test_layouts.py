"""Byte layouts of the KV formats: sizes, sections, refusals."""

import itertools

import pytest

from kvserving_kernels.errors import LayoutError
from kvserving_kernels.formats import LAYOUTS, KVCacheDType, PageLayout, layout_of
from kvserving_kernels.formats.rotation import block_of, signs

BYTES_PER_BLOCK_AND_HEAD = {
    # (dtype, block size): bytes with head sizes 32, 64, 128 and 256
    ("int8", 16): (1088, 2112, 4160, 8256),
    ("int8", 64): (4352, 8448, 16640, 33024),
    ("int8", 128): (8704, 16896, 33280, 66048),
    ("k8v4", 16): (832, 1600, 3136, 6208),
    ("k8v4", 64): (3328, 6400, 12544, 24832),
    ("k8v4", 128): (6656, 12800, 25088, 49664),
    ("int4", 32): (1216, 2304, 4480, 8832),
    ("int4", 64): (2432, 4608, 8960, 17664),
    ("int4", 128): (4864, 9216, 17920, 35328),
    ("int4", 256): (9472, 17920, 34816, 68608),
    ("int4_hadamard", 64): (2432, 4608, 8960, 17664),
    ("int4_hadamard", 128): (4864, 9216, 17920, 35328),
    ("int2", 64): (1472, 2688, 5120, 9984),
    ("int2", 128): (2944, 5376, 10240, 19968),
    ("int2", 256): (5632, 9984, 18944, 36864),
    ("k2v4", 64): (1984, 3712, 7168, 14080),
    ("k2v4", 128): (3968, 7424, 14336, 28160),
}

EVERY_PAGE = [
    layout.page(block_size, head_size)
    for layout in LAYOUTS.values()
    for block_size, head_size in itertools.product(
        (16, 32, 48, 64, 96, 128, 256), (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
    )
    if block_size >= layout.minimum_block_size
]


@pytest.mark.parametrize(("key", "expected"), BYTES_PER_BLOCK_AND_HEAD.items())
def test_bytes_per_block_and_head(key: tuple[str, int], expected: tuple[int, ...]) -> None:
    dtype, block_size = key
    layout = layout_of(dtype)
    sizes = tuple(layout.page(block_size, size).record_bytes for size in (32, 64, 128, 256))
    assert sizes == expected


def test_every_layout_is_in_the_table() -> None:
    assert {dtype for dtype, _ in BYTES_PER_BLOCK_AND_HEAD} == set(LAYOUTS)


@pytest.mark.parametrize(
    ("dtype", "block_size", "least"),
    [
        ("int8", 16, 1.85),
        ("k8v4", 16, 2.4),
        ("int4", 64, 3.5),
        ("int4", 128, 3.5),
        ("int4_hadamard", 64, 3.5),
        ("int4_hadamard", 128, 3.5),
        ("int2", 64, 6.0),
        ("int2", 128, 6.0),
    ],
)
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_capacity_over_16_bits(dtype: str, block_size: int, least: float, head_size: int) -> None:
    page = layout_of(dtype).page(block_size, head_size)
    assert page.capacity_ratio() >= least
    assert page.capacity_ratio() == 16 / page.bits_per_element
    if dtype.startswith("int4"):
        assert page.bits_per_element <= 4.5


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_sections_are_aligned_and_do_not_overlap(page: PageLayout) -> None:
    sections = (page.k_anchors, page.k_codes, page.k_params, page.v_codes, page.v_params)
    assert all(section.offset_bytes % 16 == 0 for section in sections)
    for before, after in itertools.pairwise(sections):
        assert before.end_bytes <= after.offset_bytes
    assert page.v_params.end_bytes <= page.record_bytes
    assert page.record_bytes % 16 == 0
    assert page.record_bytes == page.block_size * page.bytes_per_token


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_sections_hold_every_token_once(page: PageLayout) -> None:
    assert page.k_anchors.rows + page.k_codes.rows == page.block_size
    assert page.v_codes.rows == page.v_params.rows == page.k_params.rows == page.block_size
    assert page.k_codes.row_bytes * 8 == page.head_size * page.layout.k_bits
    assert page.v_codes.row_bytes * 8 == page.head_size * page.layout.v_bits


def test_a_rank_may_have_one_head_or_many() -> None:
    page = layout_of("int4").page(64, 128)
    assert page.block_bytes(1) == page.record_bytes
    assert page.block_bytes(8) == 8 * page.record_bytes


def test_most_of_a_low_bit_cache_is_low_bit() -> None:
    shares = {dtype.value: layout.page(64, 64).low_bit_share for dtype, layout in LAYOUTS.items()}
    assert shares["int8"] == 0
    assert shares["k8v4"] == 0.5
    assert all(shares[dtype] == 0.9375 for dtype in ("int4", "int4_hadamard", "int2", "k2v4"))


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 40])
def test_a_block_too_small_or_odd_is_refused(block_size: int) -> None:
    with pytest.raises(
        LayoutError,
        match=rf"block size: int4 expects a multiple of 16 of at least 32 tokens, got {block_size}",
    ):
        layout_of("int4").page(block_size, 128)


def test_formats_without_anchors_take_small_blocks() -> None:
    assert layout_of("int8").page(16, 128).anchor_tokens == 0
    assert layout_of("k8v4").why_not(8, 128) is not None


@pytest.mark.parametrize("head_size", [0, 16, 40, 100, 257, 512, 576])
@pytest.mark.parametrize("dtype", list(LAYOUTS))
def test_a_head_size_without_layout_is_refused(dtype: KVCacheDType, head_size: int) -> None:
    with pytest.raises(LayoutError, match=f"head size: {dtype} expects .* got {head_size}$"):
        layout_of(dtype).page(64, head_size)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "nuq4", "int5"])
def test_a_format_without_layout_is_refused(dtype: str) -> None:
    with pytest.raises(LayoutError, match=f"KV dtype: expected one of int8, .*, got '{dtype}'"):
        layout_of(dtype)


@pytest.mark.parametrize(("head_size", "block"), [(64, 64), (128, 128), (80, 16), (96, 32)])
def test_head_sizes_rotate_in_blocks_of_a_power_of_two(head_size: int, block: int) -> None:
    assert block_of(head_size) == block


def test_signs_are_pinned_and_mixed() -> None:
    found = signs(256)
    assert set(found) == {1.0, -1.0}
    assert 96 < found.count(1.0) < 160
    # Stored caches depend on them: another sequence is another layout version.
    assert "".join("+" if sign > 0 else "-" for sign in found[:16]) == "------+--+++-+-+"
