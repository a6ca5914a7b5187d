"""Questions to several ranks: every answer is read, whatever fails in which of them."""

import pickle
import queue
import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from enginekit import RankExecutor, ranks, stand_in
from kvserving_kernels.errors import EngineEndsError, ProbeRefusedError, WorkerError
from kvserving_kernels.plugin.adapters.v0_32.cache_bytes import cache_bytes, laid_out_bytes
from kvserving_kernels.plugin.adapters.v0_32.probing import CoreProbeEngine
from kvserving_kernels.plugin.adapters.v0_32.ranks import Answer, ask, asked_by_vllm, end

RANKS = 3
FAILED = ("EXECUTOR_FAILED", b"")
SOME = [{0}, {1}, {2}, {0, 2}, {1, 2}]
ALL = {0, 1, 2}
some_ranks = pytest.mark.parametrize("failing", SOME, ids=str)


class Core:
    """An engine core with ranks."""

    vllm_config: Any = None
    available_gpu_memory_for_kv_cache = 1000

    def __init__(self, executor: RankExecutor) -> None:
        self.model_executor = executor
        self.input_queue: queue.Queue[object] = queue.Queue()

    def told(self) -> list[object]:
        """What came to the core's own queue."""
        return [self.input_queue.get_nowait() for _ in range(self.input_queue.qsize())]


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    requests = SimpleNamespace(EXECUTOR_FAILED="EXECUTOR_FAILED")
    stand_in(monkeypatch, "vllm.v1.engine", EngineCoreRequestType=requests)
    with ranks(RANKS) as executor:
        yield Core(executor)


def rank_of(worker: Any) -> int:
    """A question that every rank can answer."""
    return int(worker.rank)


def failing_in(failing: set[int], worker: Any) -> int:
    """A question that some ranks fail at."""
    if worker.rank in failing:
        raise MemoryError(f"no room in {worker.rank}")
    return int(worker.rank)


def alike(worker: Any) -> None:
    """Fails in the same way everywhere."""
    raise MemoryError("no room")


@some_ranks
def test_asked_as_vllm_asks_a_failing_rank_leaves_answers_unread(
    core: Core, failing: set[int]
) -> None:
    executor, first = core.model_executor, min(failing)
    with pytest.raises(RuntimeError, match=f"no room in {first}"):
        executor.collective_rpc(partial(failing_in, failing))
    for rank in range(first + 1, RANKS):
        succeeded, _ = executor.answers[rank].get(timeout=60)
        assert succeeded == (rank not in failing)


@some_ranks
def test_the_answers_after_a_failure_are_those_to_the_next_question(
    core: Core, failing: set[int]
) -> None:
    with pytest.raises(WorkerError) as failed:
        ask(core, partial(failing_in, failing))
    for rank in range(RANKS):
        assert (f"rank {rank} of 3: MemoryError: no room in {rank}" in str(failed.value)) == (
            rank in failing
        )
    assert ask(core, rank_of) == [0, 1, 2]
    assert core.told() == []


def test_what_all_ranks_say_is_told_once(core: Core) -> None:
    with pytest.raises(WorkerError, match=r"^MemoryError: no room$"):
        ask(core, alike)
    with pytest.raises(WorkerError, match=r"^MemoryError: no room$"):
        ask(core, alike, together=True)
    assert ask(core, rank_of) == [0, 1, 2]


@some_ranks
def test_a_rank_that_fails_alone_in_a_common_computation_ends_the_engine(
    core: Core, failing: set[int]
) -> None:
    with pytest.raises(EngineEndsError, match=r"not failed alike .*no room.*: the engine ends"):
        ask(core, partial(failing_in, failing), together=True)
    assert core.told() == [FAILED]


def test_ranks_that_fail_for_reasons_of_their_own_are_not_in_step(core: Core) -> None:
    with pytest.raises(WorkerError, match=r"rank 0 of 3: .*rank 2 of 3: "):
        ask(core, partial(failing_in, ALL))
    with pytest.raises(EngineEndsError, match="not failed alike"):
        ask(core, partial(failing_in, ALL), together=True)
    assert core.told() == [FAILED]


def test_of_an_engine_that_ends_nothing_more_is_asked(core: Core) -> None:
    raised = end(core, "lost its cache")
    assert str(raised) == "lost its cache: the engine ends"
    with pytest.raises(EngineEndsError, match="lost its cache"):
        ask(core, rank_of)
    assert core.model_executor.calls == 0
    assert core.told() == [FAILED]


@pytest.mark.parametrize("silent", range(RANKS))
def test_a_rank_that_does_not_answer_in_time_ends_the_engine(core: Core, silent: int) -> None:
    answer = threading.Event()

    def wait(worker: Any) -> None:
        if worker.rank == silent:
            answer.wait()

    with pytest.raises(EngineEndsError, match=r"have not answered \(TimeoutError"):
        ask(core, wait, seconds=0.01)
    answer.set()
    assert core.told() == [FAILED]
    # What the silent rank says by now is not taken for an answer to something else.
    with pytest.raises(EngineEndsError):
        ask(core, rank_of)


@pytest.mark.parametrize(
    ("variable", "seconds"), [(None, 600.0), ("10", 600.0), ("300", 600.0), ("3600", 7200.0)]
)
def test_workers_have_time_for_the_step_that_they_are_at(
    core: Core, monkeypatch: pytest.MonkeyPatch, variable: str | None, seconds: float
) -> None:
    monkeypatch.delenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", raising=False)
    if variable is not None:
        monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", variable)
    limits: list[float | None] = []
    original = core.model_executor.collective_rpc

    def noted(function: Any, timeout: float, **more: Any) -> list[Any]:
        limits.append(timeout)
        return original(function, timeout, **more)

    core.model_executor.collective_rpc = noted  # type: ignore[assignment]
    ask(core, rank_of)
    assert limits == [seconds]


def test_an_executor_that_is_broken_ends_the_engine(core: Core) -> None:
    core.model_executor.broken = RuntimeError("Executor failed.")
    with pytest.raises(EngineEndsError, match="Executor failed"):
        ask(core, rank_of)
    assert core.told() == [FAILED]


@pytest.mark.parametrize("stale", [Answer(-1, 7), "an output of a step", None])
@pytest.mark.parametrize("rank", range(RANKS))
def test_an_answer_to_another_question_is_never_taken_for_one(
    core: Core, stale: object, rank: int
) -> None:
    core.model_executor.answers[rank].put((True, pickle.dumps(stale)))
    with pytest.raises(EngineEndsError, match="answer another question"):
        ask(core, rank_of)
    assert core.told() == [FAILED]


@some_ranks
def test_its_methods_fail_without_leaving_answers(core: Core, failing: set[int]) -> None:
    executor = core.model_executor
    for worker in executor.workers:
        worker.initialize_from_config = partial(_allocate, failing, worker)
    with asked_by_vllm(core):
        with pytest.raises(WorkerError, match="no room"):
            executor.collective_rpc("initialize_from_config", args=(["a", "b", "c"],))
        assert executor.collective_rpc("initialize_from_config", args=([],)) == [None] * 3
    assert ask(core, rank_of) == [0, 1, 2]
    assert "collective_rpc" not in vars(executor)
    assert core.told() == []


@some_ranks
def test_ranks_warm_up_together(core: Core, failing: set[int]) -> None:
    executor = core.model_executor
    for worker in executor.workers:
        worker.compile_or_warm_up_model = partial(failing_in, failing, worker)
    with asked_by_vllm(core), pytest.raises(EngineEndsError):
        executor.collective_rpc("compile_or_warm_up_model")
    assert "collective_rpc" not in vars(executor)
    assert core.told() == [FAILED]


def _allocate(failing: set[int], worker: Any, configs: list[str]) -> None:
    if configs and worker.rank in failing:
        raise MemoryError("no room")


@pytest.fixture
def private_cache(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    done: list[tuple[str, int]] = []
    stand_in(
        monkeypatch,
        "kvserving_kernels.plugin.adapters.v0_32.private_cache",
        open_cache=partial(_opened, done),
        feed_cache=partial(_fed, done),
        close_cache=lambda worker: done.append(("close", worker.rank)),
    )
    return done


@pytest.fixture
def engine(core: Core, private_cache: list[tuple[str, int]]) -> CoreProbeEngine:
    return CoreProbeEngine(core)


@some_ranks
def test_a_rank_without_room_has_all_closed(
    core: Core,
    engine: CoreProbeEngine,
    private_cache: list[tuple[str, int]],
    failing: set[int],
) -> None:
    for rank in failing:
        core.model_executor.workers[rank].refuses = True
    with pytest.raises(ProbeRefusedError, match="no room"):
        engine.open("int4", 8)
    assert sorted(private_cache) == sorted(
        [(what, rank) for what in ("close", "open") for rank in ALL]
    )


@some_ranks
def test_a_rank_that_fails_alone_at_a_slice_ends_the_engine(
    core: Core, engine: CoreProbeEngine, failing: set[int]
) -> None:
    assert engine.feed([1], [2], 0, 1) == [-1.0]
    for rank in failing:
        core.model_executor.workers[rank].refuses = True
    with pytest.raises(EngineEndsError):
        engine.feed([1], [2], 1, 1)


def test_a_slice_that_fails_in_all_ranks_is_the_probes_alone(
    core: Core, engine: CoreProbeEngine
) -> None:
    for worker in core.model_executor.workers:
        worker.refuses = True
    with pytest.raises(WorkerError):
        engine.feed([1], [2], 0, 1)
    engine.close()
    assert core.told() == []


def _opened(done: list[tuple[str, int]], worker: Any, dtype: str, tokens: int) -> str | None:
    done.append(("open", worker.rank))
    return "no room" if getattr(worker, "refuses", False) else None


def _fed(done: list[tuple[str, int]], worker: Any, targets: Any, **_: Any) -> list[float]:
    if getattr(worker, "refuses", False):
        raise MemoryError("no room")
    return [-1.0 for _ in targets] if worker.rank == 0 else []


def test_an_engine_that_sleeps_computes_nothing(core: Core, engine: CoreProbeEngine) -> None:
    core.model_executor.is_sleeping = True
    with pytest.raises(ProbeRefusedError, match="the engine sleeps"):
        engine.feed([1], [2], 0, 1)
    with pytest.raises(ProbeRefusedError, match="the engine sleeps"):
        engine.limits()
    assert core.model_executor.calls == 0


def _with_memory(core: Core, workers: int, fixed: int | None = None) -> Any:
    core.vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=workers),
        cache_config=SimpleNamespace(kv_cache_memory_bytes=fixed, num_gpu_blocks_override=None),
    )
    for worker in core.model_executor.workers:
        tensors = [SimpleNamespace(size=900 + worker.rank)]
        config = SimpleNamespace(kv_cache_tensors=tensors)
        worker.model_runner = SimpleNamespace(kv_cache_config=config)
    return core


def test_one_worker_has_what_was_profiled(core: Core) -> None:
    assert cache_bytes(_with_memory(core, 1)) == [1000]


def test_ranks_with_less_memory_than_the_first_keep_what_they_have(core: Core) -> None:
    asked = _with_memory(core, RANKS)
    assert cache_bytes(asked) == [900, 901, 902]
    # Laid out anew, a cache may have fewer bytes, and may grow again.
    for worker in core.model_executor.workers:
        worker.model_runner.kv_cache_config.kv_cache_tensors[0].size = 1
    assert cache_bytes(asked) == [900, 901, 902]


def test_a_size_that_a_flag_fixes_is_that_of_all(core: Core) -> None:
    assert cache_bytes(_with_memory(core, RANKS, fixed=1000)) == [1000] * RANKS


def test_tensors_of_one_allocation_are_counted_once() -> None:
    tensors = [SimpleNamespace(size=64), SimpleNamespace(size=64)]
    assert laid_out_bytes(SimpleNamespace(kv_cache_tensors=tensors)) == 64
    assert laid_out_bytes(SimpleNamespace(kv_cache_tensors=[])) == 0
