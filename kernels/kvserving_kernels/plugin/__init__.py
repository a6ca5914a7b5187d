"""The vLLM plugin: `register` is what vLLM calls in each of its processes."""

import logging
import os
from enum import Enum, auto
from typing import Final

PLUGIN_NAME: Final = "kvserving"

logger = logging.getLogger("vllm.kvserving")


class Selection(Enum):
    """How far an engine asks for this plugin."""

    NAMED = auto()
    """`VLLM_PLUGINS` names it: the engine gets all of it."""
    ON_REQUEST = auto()
    """The variable is unset, so that vLLM loads every plugin: only an engine with a setting of ours
    in `--additional-config` gets what it set, any other stays as it is."""
    NONE = auto()
    """The variable names others only."""


def selection(environment: str | None) -> Selection:
    """What a value of `VLLM_PLUGINS` says of this plugin."""
    if environment is None:
        return Selection.ON_REQUEST
    return Selection.NAMED if PLUGIN_NAME in environment.split(",") else Selection.NONE


def register() -> None:
    """Install the plugin in this process; raises if it is named and vLLM is not supported."""
    chosen = selection(os.environ.get("VLLM_PLUGINS"))
    if chosen is Selection.NONE:
        return
    import vllm

    from kvserving_kernels.errors import UnsupportedEngineError
    from kvserving_kernels.plugin.adapters import adapter_for

    try:
        adapter = adapter_for(vllm.__version__)
    except UnsupportedEngineError as error:
        if chosen is Selection.NAMED:
            raise
        logger.warning("kvserving: %s", error)
        return
    adapter.install(chosen is Selection.NAMED)
