"""Which prompts are scored, and on which pod the next one is; pure."""

from collections.abc import Sequence

from kvserving_operator.live import KVSettings
from kvserving_operator.trials.probing import LEAST_BLOCKS, Request, builtin_set
from kvserving_operator.trials.seen import Seen, block_size
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.trials.plan import Plan

MOST_PROMPTS = 400
"""Built-in prompts: at 2 %, a median of 60 tell int8 from a drop at the bound."""
BUILTIN_BLOCKS = 2 * LEAST_BLOCKS
"""Most blocks of a built-in prompt."""


def prompts_of(plan: Plan, seen: Seen) -> tuple[Prompt, ...]:
    """Prompts to be scored: a user's own, or the built-in ones; none while theirs are faulty."""
    if seen.probe_set.problem:
        return ()
    own = seen.probe_set.prompts[: plan.max_samples]
    return own or builtin_set(min(MOST_PROMPTS, plan.max_samples), block_size(seen))


def request_of(
    trial: str,
    settings: KVSettings,
    kind: str,
    number: int,
    pods: Sequence[str],
    seen: Seen,
    others: Sequence[str] = (),
) -> Request:
    """Pair of a prompt's number, on the next pod in turn; with `others` on one of those too."""
    name = pods[number % len(pods)]
    state = seen.runtime[name]
    size, max_tokens = state.capacity.block_size or 0, seen.max_tokens
    if not seen.probe_set.prompts:
        # Prompts that were made up are cut alike, whatever the tokenizer makes of them.
        max_tokens = min(max_tokens, BUILTIN_BLOCKS * size)
    return Request(
        trial=trial,
        kind=kind,
        number=number,
        target=seen.targets[name],
        model=seen.model,
        block_size=size,
        max_tokens=max_tokens,
        dtype=settings.kv_cache_dtype,
        baseline=seen.targets[others[number % len(others)]] if others else None,
    )
