"""Ranks of an engine without vLLM: threads that answer calls as vLLM's executor has it in 0.32.

A call goes to all ranks; each answers into a queue of its own, an exception as a failure. The
caller reads the queues in the order of the ranks, and the first failure or time-out ends its
reading.
"""

import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


class RankExecutor:
    """`MultiprocExecutor`, as far as its calls and answers go."""

    def __init__(self, ranks: int) -> None:
        self.workers: list[Any] = [SimpleNamespace(rank=rank) for rank in range(ranks)]
        self.is_sleeping = False
        self.calls = 0
        self.broken: Exception | None = None
        self._asked: list[queue.Queue[Any]] = [queue.Queue() for _ in range(ranks)]
        self.answers: list[queue.Queue[Any]] = [queue.Queue() for _ in range(ranks)]
        self._threads = [
            threading.Thread(target=self._serve, args=(rank,), daemon=True) for rank in range(ranks)
        ]
        for thread in self._threads:
            thread.start()

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """What each rank answers."""
        self.calls += 1
        if self.broken is not None:
            raise self.broken
        deadline = None if timeout is None else time.monotonic() + timeout
        for asked in self._asked:
            asked.put((method, args, kwargs or {}))
        responses = []
        for answers in self.answers:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                succeeded, result = answers.get(timeout=left)
            except queue.Empty as error:
                raise TimeoutError(f"RPC call to {method} timed out.") from error
            if not succeeded:
                raise RuntimeError(f"Worker failed with error '{result}'")
            responses.append(pickle.loads(result))  # noqa: S301
        return responses

    def stop(self) -> None:
        """End the ranks."""
        for asked in self._asked:
            asked.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, rank: int) -> None:
        while (call := self._asked[rank].get()) is not None:
            method, args, kwargs = call
            worker = self.workers[rank]
            try:
                if isinstance(method, str):
                    result = getattr(worker, method)(*args, **kwargs)
                else:
                    result = method(worker, *args, **kwargs)
                self.answers[rank].put((True, pickle.dumps(result)))
            except Exception as error:
                self.answers[rank].put((False, str(error)))


@contextmanager
def ranks(count: int) -> Iterator[RankExecutor]:
    """An executor of so many ranks."""
    executor = RankExecutor(count)
    try:
        yield executor
    finally:
        executor.stop()
