"""What the layers of a model keep of a sequence."""

from dataclasses import dataclass
from enum import StrEnum


class LayerKind(StrEnum):
    """What a layer keeps of a sequence."""

    FULL = "full attention"
    SLIDING = "sliding window"
    LATENT = "latent attention (MLA)"
    STATE = "constant state"
    """Mamba and linear attention: as much for a long sequence as for a short one."""


@dataclass(frozen=True)
class State:
    """Elements of a layer's constant state, which tensor parallelism divides."""

    model_elements: int
    """Kept in the dtype in which the model runs: the inputs of a convolution."""
    recurrent_elements: int = 0
    recurrent_dtype: str | None = None
    """Dtype of the rest, None for the model's."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are alike."""

    kind: LayerKind
    count: int
    kv_heads: int = 0
    head_size: int = 0
    window: int | None = None
    """Tokens that a sliding window keeps."""
    latent_size: int = 0
    """Elements of one token in a layer with latent attention: its rank and its rotary part."""
    value_size: int | None = None
    """Elements of a value, where they are not as many as those of a key."""
    index_bytes: int = 0
    """Bytes a token of what chooses the tokens that attention reads, in sparse attention."""
    state: State | None = None
    """None where the configuration does not say how large a constant state is."""


@dataclass(frozen=True)
class ModelShape:
    """A model as its KV cache sees it."""

    groups: tuple[LayerGroup, ...]
    dtype: str
    """Dtype in which it runs, by the configuration."""
    max_length: int | None
    name: str = ""

    @property
    def layers(self) -> int:
        """Layers in all; one with attention and a state counts twice, one with neither not."""
        return sum(group.count for group in self.groups)

    @property
    def unsized_layers(self) -> int:
        """Layers whose constant state is not part of any figure, as its size is not known."""
        return sum(
            group.count
            for group in self.groups
            if group.kind is LayerKind.STATE and group.state is None
        )
