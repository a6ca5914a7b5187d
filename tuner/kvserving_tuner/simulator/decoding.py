"""The sequences that get a token in every step, without keeping any count of them per step.

While a sequence decodes, its tokens in the KV cache are the step number less a constant. From that
follow the context that a step reads, when each sequence finishes, and when it needs a block: once
in as many steps as a block has tokens.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from math import isqrt
from typing import Final

from kvserving_tuner.simulator.eviction import Window
from kvserving_tuner.simulator.sequence import Sequence

BITS: Final = 40
SERIALS: Final = (1 << BITS) - 1
"""A heap's entries are a step and, in the lower bits, a serial number: one comparison, in order."""


class Decoding:
    """Decoding sequences by serial number, oldest first."""

    def __init__(self, block_size: int, eviction: Window | None) -> None:
        self.members: dict[int, Sequence] = {}
        self._block = block_size
        self._eviction = eviction
        self._full_at = eviction.full_at(block_size) if eviction else 0
        self._growing = 0
        self._offsets = 0
        # Context of sequences that no longer grow.
        self._fixed = 0
        self._finishing: list[int] = []
        self._filling: list[int] = []
        # By step number modulo block size: who needs a block, and how many give one back after it.
        self._needing: list[dict[int, Sequence]] = [{} for _ in range(block_size)]
        self._returning = [0] * block_size

    @property
    def growing(self) -> int:
        """Sequences whose context is longer by a token after each step."""
        return self._growing

    def context(self, step: int) -> int:
        """Tokens in the KV cache of all of them before `step`."""
        return self._growing * step - self._offsets + self._fixed

    def add(self, sequence: Sequence, step: int, left: int) -> None:
        """Take in a sequence that is computed and has `left` tokens to go, from `step` on."""
        sequence.offset = offset = step - sequence.computed
        sequence.decoding = True
        serial = sequence.serial
        self.members[serial] = sequence
        self._needing[offset % self._block][serial] = sequence
        heappush(self._finishing, (step + left - 1) << BITS | serial)
        self._growing += 1
        self._offsets += offset
        if self._eviction is not None:
            if sequence.computed >= self._full_at:
                self._fill(sequence)
            else:
                heappush(self._filling, (offset + self._full_at) << BITS | serial)

    def remove(self, sequence: Sequence, step: int) -> None:
        """Let a sequence go, before `step`; what it has computed is then kept with it."""
        offset = sequence.offset
        sequence.computed = step - offset
        sequence.decoding = False
        del self.members[sequence.serial]
        del self._needing[offset % self._block][sequence.serial]
        if sequence.fixed:
            sequence.fixed = False
            self._fixed -= self._full_at
            self._returning[self._returns(offset)] -= 1
        else:
            self._growing -= 1
            self._offsets -= offset

    def _fill(self, sequence: Sequence) -> None:
        sequence.fixed = True
        self._growing -= 1
        self._offsets -= sequence.offset
        self._fixed += self._full_at
        self._returning[self._returns(sequence.offset)] += 1

    def _returns(self, offset: int) -> int:
        return (offset + self._full_at - 1) % self._block

    def filled(self, step: int) -> int:
        """Note the sequences whose window is full before `step`; each gives a block back."""
        blocks = 0
        while self._filling and self._filling[0] >> BITS <= step:
            sequence = self.members.get(heappop(self._filling) & SERIALS)
            if sequence is not None:
                self._fill(sequence)
                blocks += 1
        return blocks

    def finished(self, step: int) -> Iterator[Sequence]:
        """Sequences whose last token comes with `step`, oldest first."""
        finishing = self._finishing
        while finishing and finishing[0] >> BITS <= step:
            sequence = self.members.get(heappop(finishing) & SERIALS)
            if sequence is not None:
                yield sequence

    def alike(self, step: int) -> int:
        """Steps from `step` to the next that ends a sequence, or fills its window."""
        finishing, members = self._finishing, self.members
        while finishing[0] & SERIALS not in members:
            heappop(finishing)
        steps = (finishing[0] >> BITS) - step + 1
        if self._filling:
            return min(steps, (self._filling[0] >> BITS) - step)
        return steps

    def needing(self, step: int) -> dict[int, Sequence]:
        """Sequences that need a block for `step`, oldest first."""
        return self._needing[step % self._block]

    def returned(self, step: int) -> int:
        """Blocks that are given back after `step`, because they have left their windows."""
        return self._returning[step % self._block]

    def blocks(self, step: int, steps: int, free: int) -> tuple[int, int]:
        """How many of the `steps` can be taken with so many free blocks, and the blocks they take.

        The blocks taken are less those given back.
        """
        block, count = self._block, len(self.members)
        rounds, rest = divmod(steps, block)
        if self._eviction is None and free >= count * (rounds + 1):
            phase = step % block
            part = self._needing[phase : phase + rest]
            if phase + rest > block:
                part += self._needing[: phase + rest - block]
            return steps, rounds * count + sum(map(len, part))
        taken = 0
        for at in range(step, step + steps):
            needed = len(self._needing[at % block])
            if needed > free - taken:
                return at - step, taken
            taken += needed - self._returning[at % block]
        return steps, taken


def steps_until(wait: int, first: int, growth: int) -> int:
    """Fewest steps that last `wait` ticks or longer, each `growth` longer than the one before."""
    if not growth:
        return -(-wait // first)
    # The larger root of growth/2 * n^2 + (first - growth/2) * n = wait, in whole numbers.
    linear = 2 * first - growth
    steps = (isqrt(linear * linear + 8 * growth * wait) - linear) // (2 * growth)
    while steps * first + growth * (steps * (steps - 1) // 2) < wait:
        steps += 1
    return steps
