"""How many kernels a process has compiled: one that is compiled late holds requests up.

Counted are those of Numba and of Triton, whoever wrote them, since `start` was called.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any


class Compiles:
    """A count that the compilers' own hooks move."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, *_: Any, **__: Any) -> None:
        """Count one; takes and leaves alone whatever a hook is told."""
        self.count += 1


@cache
def start() -> Compiles:
    """Count from now on; the count so far where that was asked for before."""
    compiles = Compiles()
    if find_spec("numba") is not None:
        _watch_numba(compiles)
    if find_spec("triton") is not None:
        _watch_triton(compiles)
    return compiles


def _watch_numba(compiles: Compiles) -> None:
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            compiles.add()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Listener())


def _watch_triton(compiles: Compiles) -> None:
    from triton import knobs

    before: Callable[..., Any] | None = knobs.runtime.jit_post_compile_hook

    def compiled(*arguments: Any, **named: Any) -> Any:
        # Also called for kernels that lay in the cache on disk: loading those takes no compiler,
        # but does take time that a request waits for.
        compiles.add()
        return None if before is None else before(*arguments, **named)

    knobs.runtime.jit_post_compile_hook = compiled
