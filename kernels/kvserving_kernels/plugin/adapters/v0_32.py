"""vLLM 0.32: where its engine core, scheduler and output processor are read and steered.

What is relied on, apart from the documented plugin entry points: `EngineCore` utility methods,
`Scheduler.max_num_active_reqs` (admission to the running set; never `max_num_running_reqs`, which
sizes the runner's buffers), `OutputProcessor`'s statistics hooks, and
`Platform.check_and_update_config`, which sees every configuration before an engine is built, and
`SpinCondition`, by which processes wait for each other's messages.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partialmethod
from importlib.metadata import version
from typing import Any, Final

from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.formats import ALIASES, this_machine
from kvserving_kernels.plugin.changes import IntegerRange
from kvserving_kernels.plugin.controller import RuntimeController
from kvserving_kernels.plugin.document import (
    Capacity,
    Effective,
    EngineState,
    Startup,
    Versions,
)
from kvserving_kernels.plugin.guard import CPU, NVIDIA, check_kv_dtype
from kvserving_kernels.plugin.link import CoreLink, EngineLink, RefusedLink
from kvserving_kernels.plugin.readiness import EngineProbe

logger = logging.getLogger("vllm.kvserving")

OWN_REQUEST_PREFIX: Final = "kvserving-ready-"
"""Ids of requests that are ours and must not show in users' statistics."""

FEW_PROCESSORS: Final = 8
"""Up to so many, a process that spins takes a noticeable share of what the model computes on."""

BUSY_SECONDS: Final = 1.0
"""After a message more are likely for so long: as long as vLLM polls without a pause."""

BUSY_CHECK_MILLISECONDS: Final = 5
IDLE_CHECK_MILLISECONDS: Final = 50
"""A notification can be lost, which vLLM makes up for after 5 s only: it counts on polling."""

_CACHE_SALT: Final = "kvserving-ready"
# Every vocabulary has token 0, and a prompt of one token never fills a block to cache.
_PROMPT_TOKEN_IDS: Final = (0,)


def install() -> None:
    """Add the runtime API to the engine core and the KV dtype guard to the platform."""
    from vllm.platforms import current_platform
    from vllm.v1.engine.core import EngineCore

    if hasattr(EngineCore, "kvserving_describe"):
        return
    EngineCore.kvserving_describe = _describe
    EngineCore.kvserving_apply = _apply
    _guard(current_platform)
    if current_platform.is_cpu() and len(os.sched_getaffinity(0)) <= FEW_PROCESSORS:
        _wait_without_spinning()


def link(engine_client: Any) -> EngineLink:
    """The engine core behind a client, or the reason why there is no one core to speak to."""
    size = engine_client.vllm_config.parallel_config.data_parallel_size
    if size > 1:
        return RefusedLink(
            f"this engine runs {size} data-parallel cores, which could differ from each other; "
            "the runtime API needs one: run replicas instead of --data-parallel-size"
        )
    call = getattr(engine_client.engine_core, "call_utility_async", None)
    if call is None:
        return RefusedLink("this engine runs inside the server's process and takes no calls")
    return CoreLink(call)


def probe(engine_client: Any) -> EngineProbe:
    """Watches an engine's outputs, and keeps our own requests out of its statistics."""
    return _Probe(engine_client)


def _wait_without_spinning() -> None:
    """Have engine core and worker sleep until a message comes.

    vLLM's readers poll shared memory for a second after every message, which under load is always:
    on two processors half of them wait for the other half. What it does after that second, waiting
    for a notification, costs microseconds of a step that takes a CPU a hundred thousand.
    """
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    original: Callable[[Any, int | None], None] = SpinCondition.wait

    def wait(condition: Any, timeout_ms: int | None = None) -> None:
        busy = time.monotonic() <= condition.last_read + BUSY_SECONDS
        check = BUSY_CHECK_MILLISECONDS if busy else IDLE_CHECK_MILLISECONDS
        original(condition, check if timeout_ms is None else min(timeout_ms, check))

    SpinCondition.__init__ = partialmethod(SpinCondition.__init__, busy_loop_s=0)
    SpinCondition.wait = wait


class _Engine:
    """A running `EngineCore` as the controller sees it."""

    def __init__(self, core: Any) -> None:
        self._core = core
        if not hasattr(core.scheduler, "max_num_active_reqs"):
            raise UnsupportedEngineError(
                f"the scheduler {type(core.scheduler).__name__} has no max_num_active_reqs: "
                "the runtime API needs vLLM's own scheduler or a subclass of it"
            )

    def get(self, knob: str) -> int:
        """Value in force of a live knob."""
        if knob != "max_active_seqs":
            raise KeyError(knob)
        return int(self._core.scheduler.max_num_active_reqs)

    def set(self, knob: str, value: int) -> None:
        """Set a live knob; it counts from the next step on."""
        if knob != "max_active_seqs":
            raise KeyError(knob)
        self._core.scheduler.max_num_active_reqs = value

    def state(self) -> EngineState:
        """Read the engine."""
        import vllm

        scheduler, config = self._core.scheduler, self._core.vllm_config
        slots = int(scheduler.max_num_running_reqs)
        model_dtype = _torch_name(config.model_config.dtype)
        return EngineState(
            effective=Effective(
                kv_cache_dtype=_resolved_kv_dtype(config.cache_config.cache_dtype, model_dtype),
                max_active_seqs=self.get("max_active_seqs"),
                max_scheduled_tokens=int(scheduler.max_num_scheduled_tokens),
            ),
            envelope={"max_active_seqs": IntegerRange(1, slots)},
            capacity=_capacity(config, scheduler.kv_cache_config),
            versions=Versions(vllm.__version__.partition("+")[0], version("kvserving")),
            startup=Startup(
                max_num_seqs=slots,
                max_num_batched_tokens=int(config.scheduler_config.max_num_batched_tokens),
                max_model_len=int(config.model_config.max_model_len),
                prefix_caching=bool(config.cache_config.enable_prefix_caching),
                dtype=model_dtype,
            ),
        )


def _capacity(config: Any, kv_cache: Any) -> Capacity:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

    tokens, concurrency = get_kv_cache_capacity(config, kv_cache)
    kv_cache_bytes = sum(int(tensor.size) for tensor in kv_cache.kv_cache_tensors)
    block_size = int(config.cache_config.block_size)
    return Capacity(
        kv_cache_tokens=int(tokens),
        blocks=int(kv_cache.num_blocks),
        block_size=block_size,
        bytes_per_token=kv_cache_bytes // max(1, int(kv_cache.num_blocks) * block_size),
        kv_cache_bytes=kv_cache_bytes,
        max_concurrency=round(float(concurrency), 3),
    )


def _torch_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _resolved_kv_dtype(name: str, model_dtype: str) -> str:
    return model_dtype if name == "auto" else str(ALIASES.get(name, name))


def _controller(core: Any) -> RuntimeController:
    controller: RuntimeController | None = getattr(core, "_kvserving_controller", None)
    if controller is None:
        controller = RuntimeController(_Engine(core), lambda: datetime.now(UTC))
        core._kvserving_controller = controller
    return controller


def _describe(core: Any) -> dict[str, Any]:
    """`EngineCore.kvserving_describe`."""
    return _controller(core).describe()


# No annotation on `document`: vLLM would convert the argument to it, and validation is ours.
def _apply(core, document):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """`EngineCore.kvserving_apply`."""
    answer = _controller(core).apply(document)
    logger.info("kvserving: change %s: %s", document, answer["outcome"])
    return answer


def _guard(platform: Any) -> None:
    owner = type(platform)
    original: Callable[[Any], None] = owner.check_and_update_config
    accelerator = CPU if platform.is_cpu() else NVIDIA

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        import vllm

        model = vllm_config.model_config
        check_kv_dtype(
            vllm_config.cache_config.cache_dtype,
            accelerator,
            vllm.__version__.partition("+")[0],
            this_machine(),
            None if model is None else _torch_name(model.dtype),
        )
        original(vllm_config)

    owner.check_and_update_config = classmethod(check_and_update_config)


class _Probe:
    """An `AsyncLLM` as readiness sees it. Times are `time.monotonic()`."""

    def __init__(self, engine_client: Any) -> None:
        self._client = engine_client
        self._user_token_at: float | None = None
        self._step_at: float | None = None
        self._watch(engine_client.output_processor)

    def _watch(self, processor: Any) -> None:
        count_output = processor._update_stats_from_output
        count_finished = processor._update_stats_from_finished
        count_step = processor.update_scheduler_stats

        def on_output(request: Any, output: Any, *rest: Any) -> None:
            if _is_own(request):
                return
            if output.new_token_ids:
                self._user_token_at = time.monotonic()
            count_output(request, output, *rest)

        def on_finished(request: Any, *rest: Any) -> None:
            if not _is_own(request):
                count_finished(request, *rest)

        def on_step(scheduler_stats: Any) -> None:
            if scheduler_stats is not None:
                self._step_at = time.monotonic()
            count_step(scheduler_stats)

        processor._update_stats_from_output = on_output
        processor._update_stats_from_finished = on_finished
        processor.update_scheduler_stats = on_step

    def dead_reason(self) -> str | None:
        """Why the engine can never answer again, or None."""
        return "the engine core is dead" if self._client.errored else None

    def last_user_token_at(self) -> float | None:
        """When a user's request last got a token."""
        return self._user_token_at

    def last_step_at(self) -> float | None:
        """When the scheduler last reported a step."""
        return self._step_at

    async def complete(self) -> None:
        """Have one token produced, or raise."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            # Neither reads from the prefix cache nor counts in its hit rate.
            skip_reading_prefix_cache=True,
        )
        prompt = {"prompt_token_ids": list(_PROMPT_TOKEN_IDS), "cache_salt": _CACHE_SALT}
        request_id = f"{OWN_REQUEST_PREFIX}{uuid.uuid4()}"
        tokens = 0
        async for output in self._client.generate(prompt, parameters, request_id):
            tokens += sum(len(completion.token_ids) for completion in output.outputs)
        if tokens == 0:
            raise RuntimeError("the engine finished a request without a token")


def _is_own(request: Any) -> bool:
    return str(request.external_req_id).startswith(OWN_REQUEST_PREFIX)
