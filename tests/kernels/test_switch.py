"""A switch of the KV cache apart from an engine: what is lost, what is kept, and what ends."""

import queue
import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from enginekit import RankExecutor, ranks, stand_in
from kvserving_kernels.errors import EngineEndsError, SwitchError
from kvserving_kernels.eviction import NO_EVICTION
from kvserving_kernels.plugin.adapters.v0_32 import randomness, switch
from kvserving_kernels.plugin.adapters.v0_32.ranks import ask
from kvserving_kernels.plugin.adapters.v0_32.switch import Cache, cache_of, switch_cache

INT4 = Cache("int4", NO_EVICTION)
BEFORE = Cache("bfloat16", NO_EVICTION)
FAILED = ("EXECUTOR_FAILED", b"")


class FakeCore:
    """An engine core with steps under way, of which each does as it is told."""

    def __init__(self, *steps: Exception | None) -> None:
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(dtype="torch.bfloat16"),
            cache_config=SimpleNamespace(cache_dtype="auto"),
            additional_config={},
        )
        self.batch_queue = deque(steps)
        self.input_queue: queue.Queue[object] = queue.Queue()
        self.pauses: list[str] = []
        self.reset = False
        self.running: list[str] = []
        self.resets: list[Exception | None] = []
        self.pause_state = "UNPAUSED"
        self.scheduler: Any = self
        self.model_executor: Any = SimpleNamespace(is_sleeping=False)

    def set_pause_state(self, state: str) -> None:
        """Remember it."""
        self.pause_state = state
        self.pauses.append(state)

    def _process_engine_step(self) -> None:
        error = self.batch_queue.pop()
        if error is not None:
            raise error

    def step_fn(self) -> None:
        """A step of a core in its caller's process."""
        self._process_engine_step()

    def has_unfinished_requests(self) -> bool:
        """None."""
        return False

    def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        """Requests went back to the queue, or not."""
        error = self.resets.pop(0) if self.resets else None
        if error is not None:
            raise error
        self.reset = reset_running_requests
        self.running.clear()

    def told(self) -> list[object]:
        """What came to the core's own queue."""
        return [self.input_queue.get_nowait() for _ in range(self.input_queue.qsize())]


class InProcessCore(FakeCore):
    """A core that its caller steps itself."""

    _process_engine_step = None  # type: ignore[assignment]

    def __init__(self, *steps: Exception | None) -> None:
        super().__init__(*steps)
        del self.input_queue

    def step_fn(self) -> None:
        """A step, called by the caller."""
        FakeCore._process_engine_step(self)


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of vLLM's that a switch needs outside its workers."""
    pauses = SimpleNamespace(PAUSED_ALL="PAUSED_ALL")
    stand_in(monkeypatch, "vllm.v1.core.sched.interface", PauseState=pauses)
    requests = SimpleNamespace(EXECUTOR_FAILED="EXECUTOR_FAILED")
    stand_in(monkeypatch, "vllm.v1.engine", EngineCoreRequestType=requests)


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[Cache]:
    """Caches that were laid out, in this order."""
    caches: list[Cache] = []
    monkeypatch.setattr(switch, "_lay_out", lambda _, cache: caches.append(cache))
    return caches


def test_steps_under_way_are_finished_before_the_cache_goes(laid_out: list[Cache]) -> None:
    core = FakeCore(None, None)
    switch_cache(core, INT4)
    assert not core.batch_queue
    assert (core.reset, laid_out, core.told()) == (True, [INT4], [])
    assert core.pauses == ["PAUSED_ALL", "UNPAUSED"]


@pytest.mark.parametrize("steps", [(RuntimeError("worker died"),), (RuntimeError("x"), None)])
def test_a_step_under_way_that_fails_ends_the_engine(
    laid_out: list[Cache], steps: tuple[Exception | None, ...]
) -> None:
    core = FakeCore(*steps)
    with pytest.raises(EngineEndsError, match=r"under way failed \(RuntimeError: .*engine ends$"):
        switch_cache(core, INT4)
    assert (core.told(), laid_out, core.reset) == ([FAILED], [], False)
    assert core.pause_state == "UNPAUSED"


def test_in_its_callers_process_a_failed_step_is_the_callers_to_see(laid_out: list[Cache]) -> None:
    with pytest.raises(EngineEndsError, match="worker died"):
        switch_cache(InProcessCore(RuntimeError("worker died")), INT4)
    assert laid_out == []


def _failing(monkeypatch: pytest.MonkeyPatch, *results: Exception | None) -> None:
    """Have each layout of a cache, one after the other, fail or not."""
    left = list(results)

    def lay_out(core: Any, cache: Cache) -> None:
        error = left.pop(0)
        if error is not None:
            raise error

    monkeypatch.setattr(switch, "_lay_out", lay_out)


def test_a_switch_that_fails_says_what_is_in_force_again(monkeypatch: pytest.MonkeyPatch) -> None:
    core = FakeCore()
    _failing(monkeypatch, MemoryError("full"), None)
    with pytest.raises(SwitchError, match="full; bfloat16 is in force again"):
        switch_cache(core, INT4)
    assert core.told() == []


def test_requests_that_could_not_be_requeued_are_before_the_old_cache_is_back(
    laid_out: list[Cache],
) -> None:
    core = FakeCore()
    core.running, core.resets = ["one"], [RuntimeError("blocks in use")]
    with pytest.raises(SwitchError, match="blocks in use; bfloat16 is in force again"):
        switch_cache(core, INT4)
    assert (core.running, core.reset, laid_out, core.told()) == ([], True, [BEFORE], [])


def test_requests_that_cannot_be_requeued_at_all_end_the_engine(laid_out: list[Cache]) -> None:
    core = FakeCore()
    core.running, core.resets = ["one"], [RuntimeError("blocks in use"), RuntimeError("still")]
    with pytest.raises(EngineEndsError, match="cannot be restored"):
        switch_cache(core, INT4)
    assert (laid_out, core.told()) == ([], [FAILED])


def test_blocks_that_nobody_runs_with_go_with_their_manager(laid_out: list[Cache]) -> None:
    core = FakeCore()
    # As vLLM does when all requests are back in the queue and some blocks are not free.
    core.resets = [RuntimeError("blocks in use")] * 2
    with pytest.raises(SwitchError, match="in force again"):
        switch_cache(core, INT4)
    assert (laid_out, core.told()) == ([BEFORE], [])


@pytest.mark.parametrize("error", [MemoryError("still full"), RuntimeError("still full")])
def test_a_cache_that_cannot_be_restored_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    core = FakeCore()
    _failing(monkeypatch, MemoryError("full"), error)
    with pytest.raises(EngineEndsError) as ends:
        switch_cache(core, INT4)
    assert core.told() == [FAILED]
    assert str(ends.value) == (
        "int4: full; bfloat16 cannot be restored "
        f"({type(error).__name__}: still full): the engine ends"
    )


class FakeManager:
    """vLLM's manager of blocks, as far as its events go."""

    def __init__(self, *events: str, **arguments: object) -> None:
        self.arguments = arguments
        self.block_pool = SimpleNamespace(kv_event_queue=list(events))

    def take_events(self) -> list[str]:
        """All events; from then on there are none."""
        events = list(self.block_pool.kv_event_queue)
        self.block_pool.kv_event_queue.clear()
        return events


class Generator:
    """Random numbers of a library that is not installed here: its state is the next of them."""

    def __init__(self, state: int) -> None:
        self.state = state

    def get(self) -> int:
        """Where it is."""
        return self.state

    def put(self, state: int) -> None:
        """Go on from there."""
        self.state = state


class Worker:
    """A worker that fails at a step as often as it is told."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.faults: dict[str, int] = {}
        self.prepared: list[Cache] = []
        kv_cache = SimpleNamespace(kv_cache_tensors=[SimpleNamespace(size=1 << 20)])
        self.model_runner = SimpleNamespace(kv_cache_config=kv_cache)

    def come_to(self, step: str) -> None:
        """Fail, or not."""
        if self.faults.get(step, 0):
            self.faults[step] -= 1
            raise MemoryError(f"fault at {step}")

    def initialize_from_config(self, kv_cache: object) -> None:
        """Pages for the cache that was prepared."""
        self.come_to("allocate")

    def compile_or_warm_up_model(self) -> None:
        """All ranks together."""
        self.come_to("warm up")


def prepare(worker: Any, cache: Cache) -> None:
    """Stands for what has to do with layers, of which workers have none here."""
    worker.come_to("prepare")
    worker.prepared.append(cache)


class BlocksCore(FakeCore):
    """A core whose scheduler has blocks; laying out fails as often as it is told."""

    def __init__(self, executor: RankExecutor) -> None:
        super().__init__()
        self.vllm_config.max_in_flight_tokens = 256
        self.workers = [Worker(rank) for rank in range(len(executor.workers))]
        executor.workers[:] = self.workers
        self.model_executor = executor
        self.vllm_config.parallel_config = SimpleNamespace(world_size=len(self.workers))
        self.vllm_config.cache_config.kv_cache_memory_bytes = None
        self.vllm_config.cache_config.num_gpu_blocks_override = None
        self.generators = {name: Generator(7) for name in ("numpy", "torch", "cuda")}
        self.layouts: list[Exception] = []
        self.available_gpu_memory_for_kv_cache = 1 << 20
        cache_config = SimpleNamespace(
            enable_prefix_caching=True, enable_mamba_shared_prefix_checkpoint=False
        )
        self.old = FakeManager("BlockStored")
        self.scheduler = SimpleNamespace(
            kv_cache_manager=self.old, kv_cache_config=None, running=[], block_size=128,
            hash_block_size=128,
            max_model_len=1024, cache_config=cache_config, use_eagle_block_drop=False,
            num_prefill_lookahead=0, log_stats=False, enable_kv_cache_events=True,
            dcp_world_size=1, kv_metrics_collector=None,
            scheduler_config=SimpleNamespace(watermark=0.0),
            reset_prefix_cache=lambda **_: self._manager_events().append("AllBlocksCleared"),
        )  # fmt: skip

    def _manager_events(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool.kv_event_queue

    def _initialize_kv_caches(self, vllm_config: object) -> object:
        assert len(self.model_executor.determine_available_memory()) == len(self.workers)
        self.model_executor.collective_rpc("initialize_from_config", args=("plan",))
        self.model_executor.collective_rpc("compile_or_warm_up_model")
        # As vLLM does when it has warmed up.
        random.seed(0)
        for generator in self.generators.values():
            generator.state = 0
        return SimpleNamespace(needs_kv_cache_zeroing=False)

    def _initialize_effective_attention_block_size(self) -> None:
        for worker in self.workers[:1]:
            worker.come_to("adopt")


@pytest.fixture
def world_size() -> int:
    """How many ranks the engine has."""
    return 1


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch, world_size: int) -> Iterator[BlocksCore]:
    with ranks(world_size) as executor:
        core = BlocksCore(executor)
        _stand_in_for_libraries(monkeypatch, core)
        yield core


def _stand_in_for_libraries(monkeypatch: pytest.MonkeyPatch, core: BlocksCore) -> None:
    monkeypatch.setattr(switch, "prepare_worker", prepare)

    def manager(**arguments: object) -> FakeManager:
        error = core.layouts.pop(0) if core.layouts else None
        if error is not None:
            raise error
        return FakeManager(**arguments)

    stand_in(monkeypatch, "vllm.v1.core.kv_cache_manager", KVCacheManager=manager)
    stand_in(
        monkeypatch,
        "vllm.v1.core.kv_cache_utils",
        resolve_kv_cache_block_sizes=lambda *_: (128, 128),
    )
    numpy, torch, cuda = (core.generators[name] for name in ("numpy", "torch", "cuda"))
    numpy_random = SimpleNamespace(get_state=numpy.get, set_state=numpy.put)
    device = SimpleNamespace(
        is_available=lambda: True, get_rng_state=cuda.get, set_rng_state=cuda.put
    )
    monkeypatch.setitem(sys.modules, "numpy", SimpleNamespace(random=numpy_random))
    fake = SimpleNamespace(get_rng_state=torch.get, set_rng_state=torch.put, cuda=device)
    monkeypatch.setitem(sys.modules, "torch", fake)


def test_what_happened_to_the_old_blocks_is_still_told(blocks: BlocksCore) -> None:
    switch_cache(blocks, INT4)
    assert blocks.scheduler.kv_cache_manager is not blocks.old
    assert blocks.scheduler.kv_cache_manager.take_events() == ["BlockStored", "AllBlocksCleared"]
    switch_cache(blocks, Cache("bfloat16", NO_EVICTION))
    assert blocks.scheduler.kv_cache_manager.take_events() == ["AllBlocksCleared"]


def test_it_is_told_too_where_the_old_cache_is_restored(blocks: BlocksCore) -> None:
    blocks.layouts = [MemoryError("full")]
    with pytest.raises(SwitchError):
        switch_cache(blocks, INT4)
    assert blocks.scheduler.kv_cache_manager.take_events() == ["BlockStored", "AllBlocksCleared"]


@pytest.mark.parametrize("step", ["adopt", "restore"])
def test_a_fault_behind_the_new_manager_has_the_scheduler_get_another(
    blocks: BlocksCore, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = randomness.restore

    def failing(worker: Any) -> None:
        worker.come_to("restore")
        restore(worker)

    monkeypatch.setattr(randomness, "restore", failing)
    planned = []
    initialize = blocks._initialize_kv_caches

    def plan(vllm_config: Any) -> object:
        kv_cache = initialize(vllm_config)
        planned.append(kv_cache)
        return kv_cache

    blocks._initialize_kv_caches = plan  # type: ignore[method-assign]
    blocks.generators["torch"].state = 41
    _fail(blocks, step, (0,))
    with pytest.raises(SwitchError, match=f"fault at {step}; bfloat16 is in force again"):
        switch_cache(blocks, INT4)
    _, restored = planned
    assert blocks.scheduler.kv_cache_config is restored
    assert blocks.scheduler.kv_cache_manager.arguments["kv_cache_config"] is restored
    assert (cache_of(blocks.vllm_config), blocks.workers[0].prepared) == (BEFORE, [INT4, BEFORE])
    assert blocks.generators["torch"].state == 41
    assert blocks.told() == []


@pytest.mark.parametrize("fails", [False, True])
def test_random_numbers_go_on_after_a_switch(blocks: BlocksCore, fails: bool) -> None:
    before = random.getstate()
    for generator in blocks.generators.values():
        generator.state = 41
    if fails:
        blocks.layouts = [MemoryError("full")]
    with pytest.raises(SwitchError) if fails else nullcontext():
        switch_cache(blocks, INT4)
    assert random.getstate() == before
    assert {generator.state for generator in blocks.generators.values()} == {41}
    # What was noted is used once: another switch begins where the numbers are by then.
    blocks.generators["torch"].state = 42
    switch_cache(blocks, INT4)
    assert blocks.generators["torch"].state == 42


class Layer:
    """An attention layer of vLLM's."""

    def __init__(self, attn_type: str) -> None:
        self.attn_type = attn_type


def test_only_layers_that_store_get_the_backend_of_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in(monkeypatch, "vllm.config", set_current_vllm_config=nullcontext)
    stand_in(monkeypatch, "vllm.model_executor.layers.attention", Attention=Layer)
    stand_in(
        monkeypatch, "vllm.utils.torch_utils", kv_cache_dtype_str_to_dtype=lambda name, _: name
    )
    given: list[str] = []
    monkeypatch.setattr(switch, "_drop_cache", lambda runner: None)
    monkeypatch.setattr(switch, "give_backend", lambda layer, *_: given.append(layer.attn_type))
    config = FakeCore().vllm_config
    layers = [Layer("decoder"), Layer("encoder_only"), object(), Layer("decoder")]
    config.compilation_config = SimpleNamespace(static_forward_context=dict(enumerate(layers)))
    runner = SimpleNamespace(vllm_config=config, kv_cache_dtype=None)
    switch.prepare_worker(SimpleNamespace(model_runner=runner, vllm_config=config), INT4)
    assert given == ["decoder", "decoder"]
    assert cache_of(config) == INT4


def test_an_engine_that_sleeps_is_left_asleep() -> None:
    core = FakeCore(None)
    core.model_executor.is_sleeping = True
    with pytest.raises(SwitchError, match="the engine sleeps: wake it up first"):
        switch_cache(core, INT4)
    assert (len(core.batch_queue), core.reset, core.told()) == (1, False, [])


SOME = ((0,), (1,), (2,), (0, 2))
ALL = (0, 1, 2)
several_ranks = pytest.mark.parametrize("world_size", [3])


def _fail(core: BlocksCore, step: str, failing: tuple[int, ...], times: int = 1) -> None:
    for rank in failing:
        core.workers[rank].faults[step] = times


@several_ranks
@pytest.mark.parametrize("failing", [*SOME, ALL], ids=str)
@pytest.mark.parametrize("step", ["prepare", "allocate"])
def test_all_have_the_old_cache_again_whichever_fails(
    blocks: BlocksCore, step: str, failing: tuple[int, ...]
) -> None:
    _fail(blocks, step, failing)
    with pytest.raises(SwitchError) as failed:
        switch_cache(blocks, INT4)
    assert f"fault at {step}" in str(failed.value)
    assert "bfloat16 is in force again" in str(failed.value)
    assert [worker.prepared[-1] for worker in blocks.workers] == [BEFORE] * 3
    assert cache_of(blocks.vllm_config) == BEFORE
    assert blocks.told() == []
    # Each rank answers what it is asked, and nothing that it was asked before.
    assert ask(blocks, _rank_of) == [0, 1, 2]
    switch_cache(blocks, INT4)
    assert [worker.prepared[-1] for worker in blocks.workers] == [INT4] * 3


@several_ranks
@pytest.mark.parametrize("failing", SOME, ids=str)
def test_a_rank_that_leaves_the_others_alone_while_all_warm_up_ends_the_engine(
    blocks: BlocksCore, failing: tuple[int, ...]
) -> None:
    _fail(blocks, "warm up", failing)
    with pytest.raises(EngineEndsError, match=r"not failed alike .*fault at warm up"):
        switch_cache(blocks, INT4)
    assert blocks.told() == [FAILED]
    assert [worker.prepared for worker in blocks.workers] == [[INT4]] * 3


@several_ranks
def test_warming_up_may_fail_everywhere(blocks: BlocksCore) -> None:
    _fail(blocks, "warm up", ALL)
    with pytest.raises(SwitchError, match=r"int4: MemoryError: fault at warm up; bfloat16 is"):
        switch_cache(blocks, INT4)
    assert blocks.told() == []


@several_ranks
@pytest.mark.parametrize("failing", SOME, ids=str)
def test_a_rank_that_cannot_have_the_old_cache_again_ends_the_engine(
    blocks: BlocksCore, failing: tuple[int, ...]
) -> None:
    _fail(blocks, "allocate", failing, times=2)
    with pytest.raises(EngineEndsError, match="cannot be restored"):
        switch_cache(blocks, INT4)
    assert blocks.told() == [FAILED]


@several_ranks
def test_an_executor_that_breaks_down_ends_the_engine(blocks: BlocksCore) -> None:
    blocks.model_executor.broken = RuntimeError("Executor failed.")
    with pytest.raises(EngineEndsError, match="Executor failed"):
        switch_cache(blocks, INT4)
    assert set(blocks.told()) == {FAILED}


@several_ranks
def test_its_memory_is_each_ranks_own(blocks: BlocksCore) -> None:
    for worker in blocks.workers:
        [tensor] = worker.model_runner.kv_cache_config.kv_cache_tensors
        tensor.size -= worker.rank
    offered = []
    initialize = blocks._initialize_kv_caches

    def note(vllm_config: object) -> object:
        offered.append(blocks.model_executor.determine_available_memory())
        return initialize(vllm_config)

    blocks._initialize_kv_caches = note  # type: ignore[method-assign]
    switch_cache(blocks, INT4)
    assert offered == [[1 << 20, (1 << 20) - 1, (1 << 20) - 2]]
    assert not hasattr(blocks.model_executor, "determine_available_memory")


def _rank_of(worker: Any) -> int:
    return int(worker.rank)
