"""The random numbers of a worker, which a switch of its cache must not start anew.

vLLM seeds all generators once it has laid out and warmed up a cache, which at start makes engines
alike. After a switch it would have requests without a seed sample once more what they sampled when
the engine was new.
"""

import random
from typing import Any, Final

_STATES: Final = "_kvserving_random_states"


def remember(worker: Any) -> None:
    """In a worker: note where its generators are, unless that was noted and not used yet."""
    # A switch that failed has seeded them already: its way back returns to where it began.
    if hasattr(worker, _STATES):
        return
    import numpy as np
    import torch

    setattr(
        worker,
        _STATES,
        (random.getstate(), np.random.get_state(), torch.get_rng_state(), _device_state(torch)),
    )


def restore(worker: Any) -> None:
    """In a worker: go on where the generators were."""
    import numpy as np
    import torch

    own, numpy_state, torch_state, device_state = getattr(worker, _STATES)
    delattr(worker, _STATES)
    random.setstate(own)
    np.random.set_state(numpy_state)
    torch.set_rng_state(torch_state)
    if device_state is not None:
        torch.cuda.set_rng_state(device_state)


def _device_state(torch: Any) -> Any:
    # Of the worker's own GPU alone: it must not take memory on those of others.
    return torch.cuda.get_rng_state() if torch.cuda.is_available() else None
