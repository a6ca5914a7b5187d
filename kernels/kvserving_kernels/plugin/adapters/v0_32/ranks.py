"""Questions to all workers of an engine, of which every answer is read.

vLLM's executor of several processes sends a call to all ranks and reads their answers one rank
after the other, each from a queue of its own (`MultiprocExecutor.collective_rpc`). The first answer
that is an exception, or that does not come in time, ends the reading: what the ranks behind it
answer stays in their queues, and the next call takes it for its own. So nothing that is asked here
raises in a worker, a failure is an answer like others, and each answer names its question. Where
that does not help, the queues are not to be trusted any more, and the engine ends.

Ranks that compute together wait for each other. One that fails alone, or for a reason of its own,
leaves the others waiting for it, or a step away from it, and no question afterwards can put that
right: the engine ends too.
"""

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kvserving_kernels.errors import EngineEndsError, WorkerError

logger = logging.getLogger("vllm.kvserving")

STEP_SECONDS: Final = 300.0
STEP_VARIABLE: Final = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
"""Variable of vLLM's for how long workers may take for a step, and what it is without it."""

TOGETHER: Final = frozenset({"compile_or_warm_up_model"})
"""Methods of vLLM's workers, of those that a switch needs, in which ranks compute together."""

_ENDED: Final = "_kvserving_ended"

_questions = itertools.count()


@dataclass(frozen=True)
class Answer:
    """What a worker says to a question: what a function gave, or why it gave nothing."""

    question: int
    value: Any = None
    problem: str | None = None


def answer_seconds() -> float:
    """How long all workers may take to answer: a step that is under way, and as long again."""
    return 2 * max(STEP_SECONDS, float(os.environ.get(STEP_VARIABLE, STEP_SECONDS)))


def ask(
    core: Any,
    function: Callable[..., Any],
    together: bool = False,
    seconds: float | None = None,
) -> list[Any]:
    """What `function` gives for each worker, by rank; `together` if ranks compute in it together.

    Without `seconds` they have `answer_seconds`. WorkerError where it failed in some of them and
    all are ready for another question, EngineEndsError where they are not.
    """
    _refuse_if_ended(core)
    return _ask(core, core.model_executor.collective_rpc, function, (), {}, together, seconds)


@contextmanager
def asked_by_vllm(core: Any) -> Iterator[None]:
    """Have questions that vLLM asks its workers meanwhile go the same way."""
    executor = core.model_executor
    original = executor.collective_rpc

    def collective_rpc(
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        together = method in TOGETHER
        return _ask(core, original, method, args, kwargs or {}, together, timeout)

    executor.collective_rpc = collective_rpc
    try:
        yield
    finally:
        del executor.collective_rpc


def end(core: Any, problem: str) -> EngineEndsError:
    """Have the engine end before its next step; gives the error to raise meanwhile."""
    setattr(core, _ENDED, problem)
    # A core in its caller's own process ends with the error that the caller gets.
    if hasattr(core, "input_queue"):
        from vllm.v1.engine import EngineCoreRequestType

        core.input_queue.put_nowait((EngineCoreRequestType.EXECUTOR_FAILED, b""))
    return EngineEndsError(f"{problem}: the engine ends")


def answered(
    worker: Any, *arguments: Any, question: int, function: str | Callable[..., Any], **named: Any
) -> Answer:
    """In a worker: the answer to a question about a function, or a method of the worker's."""
    try:
        if isinstance(function, str):
            return Answer(question, getattr(worker, function)(*arguments, **named))
        return Answer(question, function(worker, *arguments, **named))
    # Whatever it raises: an exception would leave the other ranks' answers unread.
    except Exception as error:
        logger.exception("kvserving: a worker failed")
        return Answer(question, problem=f"{type(error).__name__}: {error}")


def _refuse_if_ended(core: Any) -> None:
    # What was asked for before the core has come to its end finds workers in any state.
    problem = getattr(core, _ENDED, None)
    if problem is not None:
        raise EngineEndsError(f"{problem}: the engine ends")


def _ask(
    core: Any,
    call: Callable[..., Any],
    function: str | Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    together: bool,
    seconds: float | None,
) -> list[Any]:
    question = next(_questions)
    asked = partial(answered, question=question, function=function)
    limit = answer_seconds() if seconds is None else seconds
    try:
        answers: list[Any] = call(asked, timeout=limit, args=arguments, kwargs=named)
    # Of a worker's own no exception comes; these tell of the executor, or of the time.
    except Exception as error:
        logger.exception("kvserving: the workers cannot be asked")
        reason = f"the workers have not answered ({type(error).__name__}: {error})"
        raise end(core, reason) from error
    if not all(isinstance(answer, Answer) and answer.question == question for answer in answers):
        raise end(core, "the workers answer another question than the one they were asked")
    failed = {rank: answer.problem for rank, answer in enumerate(answers) if answer.problem}
    if not failed:
        return [answer.value for answer in answers]
    alike = len(failed) == len(answers) and len(set(failed.values())) == 1
    problem = next(iter(failed.values())) if alike else _told(failed, len(answers))
    if together and not alike:
        raise end(core, f"the ranks of a common computation have not failed alike ({problem})")
    raise WorkerError(problem)


def _told(failed: dict[int, str], ranks: int) -> str:
    return "; ".join(f"rank {rank} of {ranks}: {problem}" for rank, problem in failed.items())
