"""What compiled kernels alone have: threads, a cache on disk, and queries of any quality."""

import logging

import numba
import pytest
import torch
from numba.core.caching import CompileResultCacheImpl

from kernelkit import Cache, attention, random_tokens, tokens_of
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.ops.compiles import start
from kvserving_kernels.ops.numba_operations import NumbaOperations
from kvserving_kernels.ops.numba_plan import compiled
from kvserving_kernels.ops.registry import Implementation

every_format = pytest.mark.parametrize("dtype", list(LAYOUTS))


@every_format
def test_several_threads_store_and_read_what_one_does(dtype: KVCacheDType) -> None:
    sequences = [(1, 70, [1, 3, 7]), (1, 0, [0]), (1, 5, [6]), (2, 9, [2])]
    query = random_tokens(5, 6, 64, 9)
    outputs = []
    for threads in (1, 2, 5):
        cache = Cache.make(dtype, Implementation.CPU)
        assert isinstance(cache.operations, NumbaOperations)
        cache.operations.threads = threads
        for seed, (_, length, blocks) in enumerate(sequences):
            if length:
                cache.store(*tokens_of(cache, length, seed), blocks)
        outputs.append((cache.pages, cache.attend(query, sequences)))
    for pages, output in outputs[1:]:
        assert torch.equal(outputs[0][0], pages)
        # The kernel of one thread is compiled apart, and may add up in another order.
        torch.testing.assert_close(outputs[0][1], output)
    assert torch.equal(outputs[1][1], outputs[2][1])


def test_a_kernel_that_is_compiled_late_is_counted() -> None:
    compiles = start()
    before = compiles.count
    late = numba.njit(lambda number: number + 1)
    assert [late(1), late(2)] == [2, 3]
    assert compiles.count == before + 1
    assert start() is compiles


@every_format
def test_a_decode_step_rounds_alike_in_any_company(dtype: KVCacheDType) -> None:
    cache = Cache.make(dtype, Implementation.CPU)
    sequences = [(1, 40, [1, 3]), (1, 9, [2]), (1, 64, [0, 5]), (1, 33, [6, 4])]
    for seed, (_, length, blocks) in enumerate(sequences):
        cache.store(*tokens_of(cache, length, seed), blocks)
    query = random_tokens(4, 6, 64, 9)
    together = cache.attend(query, sequences)
    for token, sequence in enumerate(sequences):
        assert torch.equal(together[token : token + 1], cache.attend(query[[token]], [sequence]))
    # A prompt in the same step, and another order.
    mixed = cache.attend(query[[1, 2, 3, 0]], [(2, 9, [2]), sequences[3], sequences[0]])
    assert torch.equal(mixed[2:], together[[3, 0]])


@every_format
def test_large_scores_and_tiny_weights_keep_their_digits(dtype: KVCacheDType) -> None:
    # Scores differ by hundreds, so that most weights are far below the smallest float.
    cache = Cache.make(dtype, Implementation.CPU, kv_heads=1)
    key, value = tokens_of(cache, 200)
    cache.store(key, value, list(range(7)))
    query = random_tokens(1, 3, 64, 9, torch.float32) * 20
    got = cache.attend(query, [(1, 200, list(range(7)))])
    expected = attention(query, *cache.stored(list(range(7)), 200), 64**-0.5)
    torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-3)


@every_format
def test_a_query_that_is_not_a_number_stays_one_and_disturbs_no_other(dtype: KVCacheDType) -> None:
    cache = Cache.make(dtype, Implementation.CPU, kv_heads=1)
    cache.store(*tokens_of(cache, 40), [0, 1])
    query = random_tokens(2, 1, 64, 9, torch.float32)
    sequences = [(1, 40, [0, 1]), (1, 33, [0, 1])]
    before = cache.attend(query, sequences)
    query[0, 0, 5] = torch.nan
    after = cache.attend(query, sequences)
    assert after[0].isnan().all()
    assert torch.equal(before[1], after[1])


def test_a_folder_that_cannot_be_written_to_costs_the_cache_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO, "vllm.kvserving")
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    kernel = compiled(_double, numba.types.int64(numba.types.int64))
    assert kernel(21) == 42
    assert "not kept for the next start" in caplog.text


def _double(number: int) -> int:
    return 2 * number
