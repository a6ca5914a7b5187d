"""What happens in one engine step, and in many that are alike: vLLM's V1 scheduler.

Running sequences go first, oldest first: one token for each that decodes, then the next part of
the one prompt that may be under way. Then requests are admitted in the order of their arrival, with
what is left of the token budget. A sequence that needs a block where none is free takes those of
the newest one, which goes back to the front of the queue and is computed again.
"""

from collections import deque

from kvserving_tuner.simulator.arrivals import Arrivals
from kvserving_tuner.simulator.counters import Counters
from kvserving_tuner.simulator.decoding import Decoding, steps_until
from kvserving_tuner.simulator.eviction import Window
from kvserving_tuner.simulator.prefixcache import PrefixCache
from kvserving_tuner.simulator.sequence import Sequence
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import StepTicks


class Scheduler:
    """Queue, running sequences and blocks; its clock stands still between steps."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.counters = Counters()
        self.now = 0
        """Ticks since the start."""
        self.waiting: deque[Sequence] = deque()
        self.arrivals = Arrivals(settings, self.counters)
        self.begun: list[Sequence] = []
        """Sequences that have their first token, in the order in which they got it."""
        self.completed: list[Sequence] = []
        """Sequences that have finished, in the order in which they did."""
        self.max_active_seqs = settings.max_active_seqs or settings.max_num_seqs
        self.set_budget(settings.max_scheduled_tokens or settings.max_num_batched_tokens)
        self._block = settings.block_size
        self.cache = PrefixCache()
        self._serial = 0
        self._returned = 0
        # Whether the first in the queue is known to be too large for the free blocks.
        self._refused = False

    def set_up(self, dtype: str, eviction: Window | None, price: StepTicks) -> None:
        """Begin with an empty cache; nothing may be running."""
        settings = self.settings
        self.blocks = self.free = settings.blocks(dtype)
        self.caching = settings.prefix_caching and eviction is None
        self._eviction = eviction
        self._price = price
        self._watermark = int(settings.watermark * self.blocks)
        self._decoding = Decoding(settings.block_size, eviction)
        self._members = self._decoding.members
        self._prefilling: Sequence | None = None
        # Those whose prompts are computed in the step under way.
        self._ready: list[Sequence] = []

    def set_budget(self, tokens: int) -> None:
        """Limit the tokens of a step from now on."""
        self.max_scheduled_tokens = tokens
        # A smaller part of a prompt may fit where a larger one did not.
        self._refused = False

    @property
    def running(self) -> int:
        """Sequences that run."""
        return len(self._members) + (self._prefilling is not None) + len(self._ready)

    def take_steps(self, end: int | None) -> None:
        """Take one step or more of those that begin before `end`; something must run or wait."""
        may_admit = self.waiting and not self._refused and self._has_places()
        if self._prefilling is not None or may_admit or not self._decode(end):
            self._step()

    def _has_places(self) -> bool:
        running = len(self._members)
        return running < self.max_active_seqs and running < self.max_scheduled_tokens

    def _decode(self, end: int | None) -> bool:
        """Take as many steps as are alike; False where the next one lacks a block."""
        decoding, price, step = self._decoding, self._price, self.counters.steps
        steps = decoding.alike(step)
        due = self.arrivals.due
        if due is not None and not self.waiting and self._has_places():
            end = due if end is None or due < end else end
        first = price.base + price.sequence * len(self._members)
        first += price.context * decoding.context(step)
        growth = price.context * decoding.growing
        if end is not None:
            wait = end - self.now
            if steps * first + growth * (steps * (steps - 1) // 2) > wait:
                steps = steps_until(wait, first, growth)
        steps, blocks = decoding.blocks(step, steps, self.free)
        if not steps:
            return False
        self._take(blocks)
        self._advance(steps, steps * first + growth * (steps * (steps - 1) // 2))
        return True

    def _step(self) -> None:
        """Take one step of any kind."""
        decoding, price, step = self._decoding, self._price, self.counters.steps
        needing = decoding.needing(step)
        preempted = len(needing) > self.free
        if preempted:
            self._make_room(list(needing.values()))
        elif needing:
            self._take(len(needing))
        self._returned = decoding.returned(step)
        count = len(self._members)
        budget = self.max_scheduled_tokens - count
        spent = price.base + price.sequence * count + price.context * decoding.context(step)
        sequence = self._prefilling
        if sequence is not None:
            tokens = min(sequence.known - sequence.computed, budget)
            blocks = self._held(sequence.computed, tokens) - self._held(sequence.computed)
            if blocks > self.free:
                self._preempt()
                preempted = True
            else:
                budget -= tokens
                spent += self._prefill(sequence, tokens, blocks)
        if budget and self.waiting and not preempted:
            spent += self._admit(budget)
        self._advance(1, spent)

    def _make_room(self, needing: list[Sequence]) -> None:
        """Give a block to each sequence, oldest first, at the cost of the newest ones."""
        for sequence in needing:
            # What has been preempted is newer than all that still run.
            if not sequence.decoding:
                return
            while not self.free:
                if self._preempt() is sequence:
                    return
            self._take(1)

    def _preempt(self) -> Sequence:
        """Send the newest sequence back to the front of the queue."""
        sequence = self._prefilling
        if sequence is not None:
            self._prefilling = None
        else:
            sequence = next(reversed(self._members.values()))
            self._decoding.remove(sequence, self.counters.steps)
            sequence.known = sequence.computed + 1
        self._release(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        sequence.unreported += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(sequence)
        return sequence

    def _admit(self, budget: int) -> int:
        """Admit from the queue what the limits allow; ticks that its prompts take."""
        spent, block, caching, waiting = 0, self._block, self.caching, self.waiting
        reserve = self.settings.reserve_full_isl
        running = self.running
        self._refused = False
        while waiting and budget and running < self.max_active_seqs:
            sequence = waiting[0]
            hits = unheld = 0
            written = False
            if caching and (sequence.shares or sequence.preemptions):
                written = self._publish_for(sequence)
                hits, unheld = self.cache.lookup(sequence, (sequence.known - 1) // block)
            tokens = min(sequence.known - hits * block, budget)
            blocks = needed = -(-tokens // block)
            if reserve:
                needed = self.settings.admitted_blocks(sequence.known, self._eviction) - hits
            watermark = self._watermark if running else 0
            if needed + unheld + watermark > self.free:
                # With blocks that others return or publish it may fit before any sequence ends.
                self._refused = self._eviction is None and not written
                break
            waiting.popleft()
            running += 1
            self._serial += 1
            sequence.serial = self._serial
            sequence.computed = hits * block
            if caching:
                self.cache.hold(sequence, hits)
                self.free -= unheld
                if not sequence.preemptions:
                    self.counters.prefix_queries += sequence.known
                    self.counters.prefix_hits += hits * block
            budget -= tokens
            spent += self._prefill(sequence, tokens, blocks)
        return spent

    def _publish_for(self, sequence: Sequence) -> bool:
        """Bring up to date what sequence may find; whether that can still become more."""
        written = False
        for stretch, _ in sequence.chain:
            writer = stretch.writer
            if writer is not None:
                written = True
                computed = writer.computed
                if writer.decoding:
                    computed = self.counters.steps + 1 - writer.offset
                self.cache.publish(writer, computed // self._block)
        return written

    def _prefill(self, sequence: Sequence, tokens: int, blocks: int) -> int:
        """Compute the next `tokens` of a prompt in so many new blocks; ticks that it takes."""
        self._take(blocks)
        before = sequence.computed
        sequence.computed = after = before + tokens
        self.counters.computed_tokens += tokens
        if after == sequence.known:
            self._prefilling = None
            self._ready.append(sequence)
        else:
            self._prefilling = sequence
        if self._eviction is not None:
            freed = self._eviction.freed_blocks(before, self._block)
            self._returned += self._eviction.freed_blocks(after, self._block) - freed
            before = min(before, self._eviction.full_at(self._block))
        price = self._price
        return price.token * tokens + price.pair * (tokens * before + tokens * (tokens + 1) // 2)

    def _advance(self, steps: int, spent: int) -> None:
        """Let `steps` steps end: time passes, requests arrive, tokens come out."""
        counters, decoding = self.counters, self._decoding
        counters.steps += steps
        counters.generation_tokens += steps * len(self._members) + len(self._ready)
        self.now += spent
        due = self.arrivals.due
        if due is not None and due <= self.now:
            self.take_in()
        if self._eviction is not None:
            self.free += self._returned + decoding.filled(counters.steps)
            self._returned = 0
        for sequence in decoding.finished(counters.steps - 1):
            decoding.remove(sequence, counters.steps)
            self._finish(sequence)
        if self._ready:
            ready, self._ready = self._ready, []
            for sequence in ready:
                self._start(sequence)

    def take_in(self) -> None:
        """Queue what has arrived."""
        self.arrivals.enter(self.waiting, self.now, self.running)

    def _start(self, sequence: Sequence) -> None:
        """A prompt has been computed: its next token is there."""
        sequence.known += 1
        if sequence.first_token is None:
            sequence.first_token = self.now
            self.begun.append(sequence)
            self.arrivals.started(sequence)
            self.counters.prompt_tokens += sequence.prompt
        self.counters.reported_preemptions += sequence.unreported
        sequence.unreported = 0
        left = sequence.prompt + sequence.answer - sequence.known
        if left:
            self._decoding.add(sequence, self.counters.steps, left)
        else:
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        sequence.finished = self.now
        self.counters.finished += 1
        self.completed.append(sequence)
        if self.caching and not sequence.shares and not sequence.published:
            self.cache.retire(sequence.computed // self._block)
            self.free += self._held(sequence.computed)
            self._refused = False
        else:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        freed = self._held(sequence.computed)
        if self.caching:
            published, unheld = self.cache.release(sequence, sequence.computed // self._block)
            freed += unheld - published
        self.free += freed
        self._refused = False

    def _held(self, computed: int, tokens: int = 0) -> int:
        """Blocks that a sequence holds while `tokens` are computed behind `computed` ones."""
        blocks = -(-(computed + tokens) // self._block)
        if self._eviction is not None:
            return blocks - self._eviction.freed_blocks(computed, self._block)
        return blocks

    def _take(self, blocks: int) -> None:
        self.free -= blocks
        if self.free < self.cache.blocks:
            self.cache.evict(self.cache.blocks - self.free)

    def clear(self) -> None:
        """Send all running sequences back to the queue, in their order, and empty the cache."""
        while self.running:
            self._preempt()
        self.cache.clear()
