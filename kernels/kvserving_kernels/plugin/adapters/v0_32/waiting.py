"""How vLLM's processes wait for each other's messages (docs/decisions/0006)."""

import time
from collections.abc import Callable
from functools import partialmethod
from typing import Any, Final

BUSY_SECONDS: Final = 1.0
"""After a message more are likely for so long: as long as vLLM polls without a pause."""

BUSY_CHECK_MILLISECONDS: Final = 5
IDLE_CHECK_MILLISECONDS: Final = 50
"""A notification can be lost, which vLLM makes up for after 5 s only: it counts on polling."""


def sleep_at_once() -> None:
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
