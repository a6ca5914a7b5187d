"""vLLM's scheduler one step and one block at a time: what the simulator must equal, and slow.

It keeps every block as an object, the free blocks in a list in the order of their use, and looks at
every running request in every step, as vLLM 0.32 does (`v1/core/sched/scheduler.py`,
`v1/core/block_pool.py`). It shares settings and times with the simulator, and no other code.
"""

from collections import deque

from kvserving_tuner.simulator.eviction import Window
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import StepTimes, ticks
from kvserving_tuner.simulator.workload import Request
from tunerkit.jobs import Block, Job, Name


class StepwiseEngine:
    """The reference; `advance` as the simulator's engine has it."""

    def __init__(self, settings: EngineSettings, times: StepTimes) -> None:
        self.settings = settings
        self.times = times
        self.jobs: list[Job] = []
        self.coming: deque[Job] = deque()
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.completed: list[Job] = []
        self.max_active_seqs = settings.max_active_seqs or settings.max_num_seqs
        self.max_scheduled_tokens = settings.max_scheduled_tokens or settings.max_num_batched_tokens
        self.now = self.steps = self.generated = self.preemptions = self.reported = 0
        self.rejected = self.queries = self.hits = self.computed = 0
        self.lowest_free = 1 << 60
        self.format(settings.dtype, settings.eviction)

    def format(self, dtype: str, eviction: Window | None) -> None:
        """Begin with an empty cache."""
        self.price = self.times.in_ticks(self.settings.bytes_per_token[dtype])
        self.eviction = eviction
        self.free = [Block() for _ in range(self.settings.blocks(dtype))]
        self.total = len(self.free)
        self.cached: dict[Name, Block] = {}
        self.writers: dict[object, Job] = {}
        self.caching = self.settings.prefix_caching and eviction is None

    def switch(self, dtype: str, eviction: Window | None) -> None:
        """Change the format live."""
        while self.running:
            self.preempt()
        self.now += ticks(self.settings.switch_seconds)
        self.arrive()
        self.format(dtype, eviction)

    def submit(self, requests: list[Request]) -> None:
        """Let requests arrive."""
        for request in requests:
            due = ticks(request.arrival) + ticks(self.times.intake_seconds)
            job = Job(len(self.jobs), request, due)
            self.jobs.append(job)
            self.coming.append(job)

    def advance(self, until: float | None = None) -> None:
        """Take steps."""
        end = None if until is None else ticks(until)
        while end is None or self.now < end:
            if self.running or self.waiting:
                self.step()
            elif self.coming and (end is None or self.coming[0].due < end):
                self.now = max(self.now, self.coming[0].due)
                self.arrive()
            else:
                self.now = self.now if end is None else end
                return

    def arrive(self) -> None:
        """Queue what has arrived."""
        settings = self.settings
        while self.coming and self.coming[0].due <= self.now:
            job = self.coming.popleft()
            flying = [*self.running, *self.waiting]
            tokens = sum(j.request.prompt for j in flying if j.first_token is None)
            most, most_tokens = settings.max_num_queued_reqs, settings.max_num_queued_tokens
            too_long = job.request.prompt + job.request.answer > settings.longest
            too_many = most is not None and len(flying) >= most
            if too_long or too_many or (most_tokens is not None and tokens >= most_tokens):
                self.rejected += 1
            else:
                self.waiting.append(job)

    def step(self) -> None:
        """Schedule, let time pass, give out tokens."""
        scheduled, preempted = self.schedule_running()
        budget = self.max_scheduled_tokens - sum(job.chunk for job in scheduled)
        if not preempted:
            self.schedule_waiting(scheduled, budget)
        self.now += self.duration(scheduled)
        self.steps += 1
        self.lowest_free = min(self.lowest_free, len(self.free))
        self.arrive()
        for job in scheduled:
            job.computed += job.chunk
            self.return_blocks(job)
        for job in scheduled:
            if job.computed == job.known:
                self.token(job)

    def duration(self, scheduled: list[Job]) -> int:
        """Ticks of a step."""
        price = self.price
        spent = price.base
        for job in scheduled:
            context = job.computed
            if self.eviction is not None:
                context = min(context, self.eviction.full_at(self.settings.block_size))
            if job.computed < job.prefill:
                self.computed += job.chunk
                spent += price.token * job.chunk
                spent += price.pair * sum(context + i + 1 for i in range(job.chunk))
            else:
                spent += price.sequence + price.context * context
        return spent

    def schedule_running(self) -> tuple[list[Job], bool]:
        """Tokens for running requests."""
        scheduled: list[Job] = []
        budget, preempted, at = self.max_scheduled_tokens, False, 0
        while at < len(self.running) and budget > 0:
            job = self.running[at]
            job.chunk = min(job.known - job.computed, budget)
            lost = False
            while not lost and self.missing(job) > len(self.free):
                preempted = True
                lost = self.preempt() is job
            if lost:
                break
            self.allocate(job)
            budget -= job.chunk
            scheduled.append(job)
            at += 1
        return scheduled, preempted

    def schedule_waiting(self, scheduled: list[Job], budget: int) -> None:
        """Tokens for requests from the queue."""
        size = self.settings.block_size
        while self.waiting and budget > 0 and len(self.running) < self.max_active_seqs:
            job = self.waiting[0]
            hits: list[Block] = []
            while self.caching and len(hits) < (job.known - 1) // size:
                block = self.cached.get(job.name(len(hits), size))
                if block is None:
                    break
                hits.append(block)
            tokens = min(job.known - len(hits) * size, budget)
            unheld = sum(block.references == 0 for block in hits)
            blocks = -(-(len(hits) * size + tokens) // size) - len(hits)
            needed = blocks
            if self.settings.reserve_full_isl:
                full = self.settings.admitted_blocks(job.known, self.eviction)
                needed = max(blocks, full - len(hits))
            spare = int(self.settings.watermark * self.total) if self.running else 0
            if needed + unheld + spare > len(self.free):
                break
            self.waiting.popleft()
            for block in hits:
                if block.references == 0:
                    self.free.remove(block)
                block.references += 1
            job.blocks = list(hits)
            job.named, job.computed, job.prefill = len(hits), len(hits) * size, job.known
            job.chunk = tokens
            if self.caching:
                self.claim(job)
                if not job.preemptions:
                    self.queries += job.known
                    self.hits += job.computed
            self.allocate(job)
            self.running.append(job)
            scheduled.append(job)
            budget -= tokens

    def claim(self, job: Job) -> None:
        """Say who may name blocks behind those that were found."""
        size = self.settings.block_size
        job.silent = job.name(job.named, size) in self.cached
        if not job.silent:
            last = job.named + len(job.request.prefix) + 1
            last = max([last, *(s.end // size + 1 for s in job.request.prefix)])
            for at in range(job.named, last):
                self.writers[job.name(at, size)[0]] = job

    def missing(self, job: Job) -> int:
        """Blocks that a request lacks for its next tokens."""
        return -(-(job.computed + job.chunk) // self.settings.block_size) - len(job.blocks)

    def allocate(self, job: Job) -> None:
        """Give a request its blocks, and name those that will be full."""
        size = self.settings.block_size
        for _ in range(self.missing(job)):
            block = self.free.pop(0)
            if block.name is not None:
                del self.cached[block.name]
                block.name = None
            block.references = 1
            job.blocks.append(block)
        while not job.silent and (job.named + 1) * size <= job.computed + job.chunk:
            name = job.name(job.named, size)
            before = (name[0], name[1] - 1)
            first = not job.named or job.name(job.named - 1, size)[0] != name[0]
            follows = first or before in self.cached
            if self.writers.get(name[0]) is not job or name in self.cached or not follows:
                job.silent = True
                return
            block = job.blocks[job.named]  # type: ignore[assignment]
            block.name = name
            self.cached[name] = block
            job.named += 1

    def return_blocks(self, job: Job) -> None:
        """Free what has left a request's window."""
        if self.eviction is None:
            return
        size = self.settings.block_size
        sinks = self.eviction.sink_blocks(size)
        start = (job.computed + 1 - self.eviction.window_tokens) // size
        for at in range(sinks, min(start, len(job.blocks))):
            block = job.blocks[at]
            if block is not None:
                block.references = 0
                self.free.insert(0, block)
                job.blocks[at] = None

    def release(self, job: Job) -> None:
        """Free all blocks of a request, its last one first."""
        plain: list[Block] = []
        named: list[Block] = []
        for block in reversed(job.blocks):
            if block is None:
                continue
            block.references -= 1
            if block.references == 0:
                (plain if block.name is None else named).append(block)
        self.free[:0] = plain
        self.free += named
        job.blocks = []
        job.named, job.silent = 0, True
        for owner, writer in list(self.writers.items()):
            if writer is job:
                del self.writers[owner]

    def preempt(self) -> Job:
        """Send the newest request back to the queue."""
        job = self.running.pop()
        self.release(job)
        job.computed = 0
        job.preemptions += 1
        job.unreported += 1
        self.preemptions += 1
        self.waiting.appendleft(job)
        return job

    def token(self, job: Job) -> None:
        """Give out a token."""
        job.generated += 1
        self.generated += 1
        self.reported += job.unreported
        job.unreported = 0
        if job.first_token is None:
            job.first_token = self.now
        if job.generated == job.request.answer:
            job.finished = self.now
            self.running.remove(job)
            self.completed.append(job)
            self.release(job)
