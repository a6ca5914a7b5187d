"""vLLM 0.32: where its engine core, scheduler, platform and output processor are read and steered.

What is relied on, apart from the documented plugin entry points: `EngineCore` utility methods,
`Scheduler.max_num_active_reqs` (admission to the running set; never `max_num_running_reqs`, which
sizes the runner's buffers), `OutputProcessor`'s statistics hooks, `check_and_update_config` and
`get_attn_backend_cls` of the platform, which see every configuration before an engine is built,
`SpinCondition`, by which processes wait for each other's messages, and what `switch` and
`private_cache` name.
"""

import os
from typing import Any, Final

from kvserving_kernels.plugin.adapters.v0_32.readiness import CompletionProbe
from kvserving_kernels.plugin.link import CoreLink, EngineLink, RefusedLink
from kvserving_kernels.plugin.readiness import EngineProbe

FEW_PROCESSORS: Final = 8
"""Up to so many, a process that spins takes a noticeable share of what the model computes on."""


def install(named: bool) -> None:
    """Add the runtime API to the engine core, and KV formats and their guard to the platform."""
    from vllm.platforms import current_platform
    from vllm.v1.engine.core import EngineCore

    from kvserving_kernels.plugin.adapters.v0_32 import core, probing, selection, waiting, warming

    if hasattr(EngineCore, "kvserving_describe"):
        return
    EngineCore.kvserving_describe = core.describe
    EngineCore.kvserving_apply = core.apply
    EngineCore.kvserving_probe_begin = probing.begin
    EngineCore.kvserving_probe_advance = probing.advance
    EngineCore.kvserving_probe_end = probing.end
    selection.install(current_platform, guarded=named)
    if current_platform.is_cpu():
        warming.compile_before_models(current_platform, named)
    if named and current_platform.is_cpu() and len(os.sched_getaffinity(0)) <= FEW_PROCESSORS:
        waiting.sleep_at_once()


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
    return CompletionProbe(engine_client)
