"""What is around the decode kernel: queries are rotated, items become one output."""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["sequences", "rows", "output_stride"],
    do_not_specialize_on_alignment=["query_start", "shares"],
)
def merge_kernel(
    means,
    stats,
    query_start,
    shares,
    signs,
    output,
    sequences,
    rows,
    output_stride,
    HEAD: tl.constexpr,
    GROUP: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,
    ROTATED: tl.constexpr,
    COVER: tl.constexpr,
):
    """Output of one query head of a query token: its items by their log-sum-exp, rotated back.

    Sequences with more than TOKENS queries are left alone. With COVER, rows after all queries
    become zero.
    """
    owner = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.program_id(2)
    kv_heads = tl.num_programs(1) // GROUP
    start = tl.load(query_start + owner)
    end = tl.load(query_start + owner + 1)
    channels = tl.arange(0, HEAD)
    if COVER:  # noqa: SIM102  decided when it is compiled
        if (owner == sequences - 1) & (token == 0):
            for row in range(end, rows):
                place = output + row * output_stride + head * HEAD
                tl.store(place + channels, tl.zeros([HEAD], output.dtype.element_ty))
    if (start + token >= end) | (end - start > TOKENS):
        return
    first = tl.load(shares + 2 * owner)
    count = tl.load(shares + 2 * owner + 1)
    top = tl.full([], -1e30, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    result = tl.zeros([HEAD], tl.float32)
    for begin in range(0, count, STEP):
        index = begin + tl.arange(0, STEP)
        item = (first + index) * kv_heads + head // GROUP
        place = item.to(tl.int64) * (GROUP * TOKENS) + token * GROUP + head % GROUP
        stat = tl.load(stats + place, mask=index < count, other=-float("inf"))
        part = tl.load(
            means + place[:, None] * HEAD + channels[None, :],
            mask=(index < count)[:, None],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(stat, 0))
        keep = tl.exp2(top - new_top)
        weight = tl.exp2(stat - new_top)
        top = new_top
        total = total * keep + tl.sum(weight, 0)
        result = result * keep + tl.sum(part * weight[:, None], 0)
    result = result / tl.where(total > 0, total, 1.0)
    if ROTATED:
        result = hadamard(result, HEAD) * tl.load(signs + channels)
    place = output + (start + token).to(tl.int64) * output_stride + head * HEAD
    tl.store(place + channels, result.to(output.dtype.element_ty))


@triton.jit(do_not_specialize=["token_stride"])
def rotate_kernel(queries, signs, rotated, token_stride, HEAD: tl.constexpr):
    """Rotated queries [tokens, heads, channels] as 32-bit floats, one query head a program."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channels = tl.arange(0, HEAD)
    query = tl.load(queries + token * token_stride + head * HEAD + channels).to(tl.float32)
    place = (token * tl.num_programs(1) + head) * HEAD + channels
    tl.store(rotated + place, hadamard(query * tl.load(signs + channels), HEAD))


@triton.jit
def hadamard(vector, HEAD: tl.constexpr):
    """The orthogonal Walsh-Hadamard transform of a vector [HEAD]: of 16 parts, then within each."""
    PART: tl.constexpr = HEAD // 16
    outer = tl.arange(0, 16)
    inner = tl.arange(0, PART)
    matrix = tl.reshape(vector, (16, PART))
    signs = _sign(outer[:, None] & outer[None, :])
    matrix = tl.sum(signs[:, :, None] * matrix[None, :, :], 1)
    signs = _sign(inner[:, None] & inner[None, :])
    matrix = tl.sum(matrix[:, None, :] * signs[None, :, :], 2)
    return tl.reshape(matrix, (HEAD,)) * (1.0 / HEAD**0.5)


@triton.jit
def _sign(bits):
    """-1.0 where the number of ones among the lowest four bits is odd, else 1.0."""
    bits ^= bits >> 2
    bits ^= bits >> 1
    return 1.0 - 2.0 * (bits & 1).to(tl.float32)
