"""Made-up tasks of a wanted length in tokens, whatever a tokenizer makes of words."""

from dataclasses import dataclass
from typing import Final

from kvserving_tuner.probes.client import ProbeClient
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.probes.tasks import Task, builtin_task
from kvserving_tuner.sources.base import EngineTarget

TOKENS_PER_WORD: Final = 1.6
"""Where the search begins: of these texts in tokenizers of today's models."""
TOLERANCE: Final = 0.1
TRIES: Final = 5


@dataclass(frozen=True)
class Fitted:
    """A task and the tokens of its prompt."""

    task: Task
    token_ids: tuple[int, ...]


async def fitted(
    client: ProbeClient, target: EngineTarget, model: str, probe: Probe, number: int, tokens: int
) -> Fitted:
    """The task of a number with about so many tokens, at most `TOLERANCE` more where it can be."""
    words = tokens / TOKENS_PER_WORD
    for _ in range(TRIES):
        task = builtin_task(probe, max(1, round(words)), number)
        ids = await client.question(target, model, task.prompt, task.start)
        if abs(len(ids) - tokens) <= TOLERANCE * tokens:
            break
        words *= tokens / len(ids)
    return Fitted(task, ids)
