"""One simulated engine: requests in, virtual time on, settings changed while it serves."""

from collections.abc import Iterable

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.counters import Counters
from kvserving_tuner.simulator.eviction import Window
from kvserving_tuner.simulator.scheduler import Scheduler
from kvserving_tuner.simulator.sequence import Sequence
from kvserving_tuner.simulator.settings import EngineSettings, within
from kvserving_tuner.simulator.steptimes import StepTimes, seconds, ticks
from kvserving_tuner.simulator.workload import Request


class Engine:
    """Deterministic; only `advance` and a live switch move its clock, which starts at 0 s."""

    def __init__(self, settings: EngineSettings, times: StepTimes) -> None:
        self.settings = settings
        self.times = times
        self.sequences: list[Sequence] = []
        """Every request that was submitted, in order."""
        self._scheduler = Scheduler(settings)
        self._intake = ticks(times.intake_seconds)
        self._set_up(settings.dtype, settings.eviction)

    def _set_up(self, dtype: str, eviction: Window | None) -> None:
        self.dtype, self.eviction = dtype, eviction
        price = self.times.in_ticks(self.settings.bytes_per_token[dtype])
        self._scheduler.set_up(dtype, eviction, price)

    @property
    def seconds(self) -> float:
        """The engine's clock."""
        return seconds(self._scheduler.now)

    @property
    def counters(self) -> Counters:
        """What has been counted since the start."""
        return self._scheduler.counters

    @property
    def begun(self) -> list[Sequence]:
        """Requests that have their first token, in the order in which they got it."""
        return self._scheduler.begun

    @property
    def completed(self) -> list[Sequence]:
        """Requests that have finished, in the order in which they did."""
        return self._scheduler.completed

    @property
    def running(self) -> int:
        """Sequences that run."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._scheduler.waiting)

    @property
    def blocks(self) -> int:
        """Blocks of the cache."""
        return self._scheduler.blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that no running sequence holds, cached or not."""
        return self._scheduler.free

    @property
    def usage(self) -> float:
        """Share of the cache's blocks that running sequences hold."""
        return 1 - self._scheduler.free / self._scheduler.blocks

    @property
    def idle(self) -> bool:
        """Whether all that was submitted is finished or refused."""
        core = self._scheduler
        return not (core.running or core.waiting or core.arrivals.coming)

    def submit(self, requests: Iterable[Request]) -> None:
        """Let requests arrive; SimulationError unless they are in order of arrival."""
        core = self._scheduler
        coming = core.arrivals.coming
        latest = coming[-1].arrival if coming else core.now
        for request in requests:
            arrival = ticks(request.arrival)
            if arrival < latest:
                expected = f"{seconds(latest)} s or later"
                raise SimulationError("arrival", expected, f"{request.arrival} s")
            latest = arrival
            sequence = Sequence(
                len(self.sequences), arrival, arrival + self._intake,
                request.prompt, request.answer, request.prompt,
            )  # fmt: skip
            if self.settings.prefix_caching:
                prefix = ((shared.id, shared.end) for shared in request.prefix)
                block = self.settings.block_size
                sequence.shares = bool(request.prefix) or request.session is not None
                sequence.chain = core.cache.chain(prefix, request.session, block)
            self.sequences.append(sequence)
            coming.append(sequence)

    def advance(self, until: float | None = None) -> None:
        """Take steps up to a time in seconds, which the last one may pass; None: until idle."""
        core = self._scheduler
        end = None if until is None else ticks(until)
        while end is None or core.now < end:
            if core.running or core.waiting:
                core.take_steps(end)
                continue
            due = core.arrivals.due
            if due is None or (end is not None and due >= end):
                core.now = core.now if end is None else end
                return
            core.now = max(core.now, due)
            core.take_in()

    @property
    def max_active_seqs(self) -> int:
        """Live cap on running sequences; those that run when it is lowered finish."""
        return self._scheduler.max_active_seqs

    @max_active_seqs.setter
    def max_active_seqs(self, value: int) -> None:
        within("max_active_seqs", value, 1, self.settings.max_num_seqs)
        self._scheduler.max_active_seqs = value

    @property
    def max_scheduled_tokens(self) -> int:
        """Live token budget of a step."""
        return self._scheduler.max_scheduled_tokens

    @max_scheduled_tokens.setter
    def max_scheduled_tokens(self, value: int) -> None:
        low, high = self.settings.max_num_seqs, self.settings.max_num_batched_tokens
        within("max_scheduled_tokens", value, low, high)
        self._scheduler.set_budget(value)

    def switch(self, dtype: str, eviction: Window | None) -> None:
        """Change format and eviction live: all that runs is computed again after a pause.

        SimulationError, and nothing changes, where a request of the longest length would not fit.
        """
        settings, core = self.settings, self._scheduler
        if dtype not in settings.bytes_per_token:
            raise SimulationError("dtype", f"one of {', '.join(settings.bytes_per_token)}", dtype)
        settings.check_length(dtype, eviction)
        core.clear()
        core.now += ticks(settings.switch_seconds)
        core.take_in()
        core.counters.switches += 1
        self._set_up(dtype, eviction)
