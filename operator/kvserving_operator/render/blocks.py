"""How many tokens a block of the KV cache holds: engines keep it for as long as they run."""

from kvserving_kernels.formats.layout import LAYOUTS
from kvserving_operator.api.v1alpha1 import Accelerator
from kvserving_operator.render.engine import Engine

LIVE_BLOCK_TOKENS = 64
"""Block of a GPU's engine that starts in 16 bits and may be switched to a format per channel. The
engine's own choice, 16, is too small for these; all its attention backends take 64."""
NATIVE_BLOCK_TOKENS = 16


def block_size(engine: Engine) -> int | None:
    """Tokens of a block, None where the engine's own choice will do.

    A CPU's engine chooses 128, which every format can do.
    """
    spec = engine.spec
    if spec.engine.block_size is not None or spec.engine.accelerator is Accelerator.CPU:
        return spec.engine.block_size
    tried = engine.tried if engine.plugin else ()
    too_small = any(
        LAYOUTS[dtype].minimum_block_size > NATIVE_BLOCK_TOKENS
        for dtype in tried
        if dtype in LAYOUTS
    )
    return LIVE_BLOCK_TOKENS if too_small else None
