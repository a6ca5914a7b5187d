"""What an implementation of the KV operations has to offer."""

from abc import abstractmethod
from typing import Protocol

import torch

from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.ops.pages import Batch


class Operations(Protocol):
    """Store and attend on pages [blocks, kv_heads, block_size, bytes_per_token] of uint8."""

    def prepare(
        self,
        page: PageLayout,
        heads: int,
        kv_heads: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Compile what decode steps of a layer of this shape need, so that none waits for it.

        Nothing, unless an implementation compiles for a shape.
        """
        return

    @abstractmethod
    def store(
        self,
        page: PageLayout,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: torch.Tensor,
        slots: torch.Tensor,
        counters: torch.Tensor | None = None,
    ) -> None:
        """Write keys and values [tokens, kv_heads, head_size] into their slots.

        A slot is block * block_size + place; negative slots are padding. The tokens of a block
        must be stored in the order of their places, in one call or many. `counters` [2] are added
        to (`ops.quantize.new_counters`).
        """

    @abstractmethod
    def attend(
        self,
        page: PageLayout,
        query: torch.Tensor,
        pages: torch.Tensor,
        batch: Batch,
        scale: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Causal attention [tokens, heads, head_size] of queries to what is stored, in their dtype.

        The tokens of the queries themselves must have been stored before. With `out` it is written
        there.
        """
