"""The prefix cache: which blocks of earlier requests are still there, and which go first.

vLLM hashes blocks as a chain and keeps a list of free ones, least recently used first. A request's
blocks are freed from its last one backwards, so deeper blocks always go before those in front of
them: what is cached of a stretch is the beginning of it. Blocks that are freed together stay
together, so the unit here is the run.

One sequence at a time adds blocks to a stretch. A sequence of which the cache already has more than
it may use, because the last token of a prompt is always computed, keeps its further blocks to
itself.
"""

from collections import OrderedDict
from collections.abc import Iterable

from kvserving_tuner.simulator.sequence import UNBOUNDED, Run, Sequence, Stretch


class PrefixCache:
    """Cached blocks by stretch, and those that nobody holds in the order of their eviction."""

    def __init__(self) -> None:
        self.blocks = 0
        """Blocks that are cached and held by no running sequence."""
        self._unheld: OrderedDict[Run, None] = OrderedDict()
        self._stretches: dict[tuple[str | int, int], Stretch] = {}
        # Holds what finished requests had for themselves alone.
        self._retired = Stretch(0)

    def chain(
        self,
        prefix: Iterable[tuple[str | int, int]],
        rest: str | int | None,
        block_size: int,
    ) -> tuple[tuple[Stretch, int], ...]:
        """Stretches by name and end in tokens, and behind them what has the name `rest` or none.

        A block belongs to the stretch that its last token lies in.
        """
        found, low = [], 0
        for name, end in prefix:
            high = end // block_size
            if high > low:
                found.append((self._named(name, low), high))
                low = high
        found.append((Stretch(low) if rest is None else self._named(rest, low), UNBOUNDED))
        return tuple(found)

    def _named(self, name: str | int, low: int) -> Stretch:
        stretch = self._stretches.get((name, low))
        if stretch is None:
            stretch = self._stretches[name, low] = Stretch(low)
        return stretch

    def lookup(self, sequence: Sequence, limit: int) -> tuple[int, int]:
        """Leading blocks that are cached, at most `limit`, and how many of them nobody holds."""
        reached = unheld = 0
        for stretch, high in sequence.chain:
            if high > limit:
                high = limit
            for run in stretch.runs:
                end = run.high if run.high < high else high
                if end <= reached:
                    break
                if not run.references:
                    unheld += end - run.low
                reached = end
            if reached < high or high == limit:
                break
        return reached, unheld

    def hold(self, sequence: Sequence, blocks: int) -> None:
        """Give a sequence the leading blocks that a lookup found, and the right to add more."""
        sequence.published = blocks
        sequence.silent = False
        for stretch, high in sequence.chain:
            if stretch.low < blocks:
                self._reference(stretch, high if high < blocks else blocks)
            if high > blocks:
                if stretch.low <= blocks < stretch.high:
                    sequence.silent = True
                    return
                stretch.writer = sequence

    def _reference(self, stretch: Stretch, high: int) -> None:
        runs = stretch.runs
        for at, run in enumerate(runs):
            if run.low >= high:
                return
            if run.high > high:
                # The deeper part keeps its place in the order of eviction, and its holders.
                front = Run(stretch, run.low, high, run.references + 1)
                if not run.references:
                    self.blocks -= high - run.low
                run.low = high
                runs.insert(at, front)
                return
            if not run.references:
                del self._unheld[run]
                self.blocks -= run.high - run.low
            run.references += 1

    def publish(self, sequence: Sequence, full: int) -> None:
        """Let others find a running sequence's blocks, the first `full` of which are filled."""
        if sequence.silent:
            return
        for stretch, high in sequence.chain:
            published = sequence.published
            if high <= published:
                continue
            if full < high:
                high = full
            if high <= published:
                return
            runs = stretch.runs
            if stretch.writer is not sequence or stretch.high != published:
                sequence.silent = True
                return
            if runs and runs[-1].references == 1:
                runs[-1].high = high
            else:
                runs.append(Run(stretch, published, high, 1))
            sequence.published = high

    def release(self, sequence: Sequence, full: int) -> tuple[int, int]:
        """Take back a sequence's blocks; how many were published, how many of them nobody holds."""
        self.publish(sequence, full)
        unheld = 0
        published = sequence.published
        for stretch, _ in reversed(sequence.chain):
            if stretch.writer is sequence:
                stretch.writer = None
            if stretch.low >= published:
                continue
            deeper: Run | None = None
            for run in reversed(stretch.runs):
                if run.low >= published:
                    continue
                run.references -= 1
                if run.references:
                    deeper = None
                    continue
                unheld += run.high - run.low
                if deeper is None:
                    self._unheld[run] = None
                    deeper = run
                else:
                    # Freed with the run behind it, so they will go one after the other.
                    deeper.low = run.low
                    stretch.runs.remove(run)
        sequence.published = 0
        self.blocks += unheld
        return published, unheld

    def retire(self, blocks: int) -> None:
        """Keep blocks that nobody will look for, until they are the least recently used."""
        self.blocks += blocks
        if self._unheld:
            latest = next(reversed(self._unheld))
            if latest.stretch is self._retired:
                # They go one after the other, so one run does for both.
                latest.high += blocks
                return
        run = Run(self._retired, 0, blocks, 0)
        self._retired.runs.append(run)
        self._unheld[run] = None

    def evict(self, blocks: int) -> None:
        """Forget the least recently used blocks."""
        self.blocks -= blocks
        while blocks:
            run = next(iter(self._unheld))
            size = run.high - run.low
            if size > blocks:
                run.high -= blocks
                return
            blocks -= size
            del self._unheld[run]
            # All behind it is gone, unless one id was given to different stretches.
            run.stretch.runs.remove(run)

    def clear(self) -> None:
        """Forget everything; nothing may be held."""
        for run in self._unheld:
            run.stretch.runs.clear()
        self._unheld.clear()
        self.blocks = 0
