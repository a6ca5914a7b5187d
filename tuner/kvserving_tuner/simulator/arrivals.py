"""What has yet to arrive, and what is refused when it does."""

from collections import deque

from kvserving_tuner.simulator.counters import Counters
from kvserving_tuner.simulator.sequence import Sequence
from kvserving_tuner.simulator.settings import EngineSettings


class Arrivals:
    """Requests in order of arrival, on their way into the queue."""

    def __init__(self, settings: EngineSettings, counters: Counters) -> None:
        self.coming: deque[Sequence] = deque()
        self._counters = counters
        self._longest = settings.longest
        self._most_requests = settings.max_num_queued_reqs
        self._most_tokens = settings.max_num_queued_tokens
        # Prompt tokens of requests that have no first token yet.
        self._unstarted = 0

    @property
    def due(self) -> int | None:
        """When the next one is seen, None if there is none."""
        return self.coming[0].due if self.coming else None

    def enter(self, queue: deque[Sequence], now: int, running: int) -> None:
        """Put what has arrived until `now` in the queue, or refuse it, as vLLM's server would."""
        coming, counters = self.coming, self._counters
        while coming and coming[0].due <= now:
            sequence = coming.popleft()
            if sequence.prompt + sequence.answer > self._longest:
                counters.too_long += 1
            elif _reached(running + len(queue), self._most_requests):
                counters.rejected_by_requests += 1
            elif _reached(self._unstarted, self._most_tokens):
                counters.rejected_by_tokens += 1
            else:
                self._unstarted += sequence.prompt
                queue.append(sequence)

    def started(self, sequence: Sequence) -> None:
        """A request has its first token."""
        self._unstarted -= sequence.prompt


def _reached(value: int, limit: int | None) -> bool:
    return limit is not None and value >= limit
