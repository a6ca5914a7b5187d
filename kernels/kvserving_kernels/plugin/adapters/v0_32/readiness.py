"""Whether tokens come out of an `AsyncLLM`; own requests stay out of the users' statistics."""

import time
import uuid
from typing import Any, Final

OWN_REQUEST_PREFIX: Final = "kvserving-ready-"
"""Ids of requests that are ours and must not show in users' statistics."""

_CACHE_SALT: Final = "kvserving-ready"
# Every vocabulary has token 0, and a prompt of one token never fills a block to cache.
_PROMPT_TOKEN_IDS: Final = (0,)


class CompletionProbe:
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
