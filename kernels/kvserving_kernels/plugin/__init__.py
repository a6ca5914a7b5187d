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
    in `--additional-config` gets what it set, any other is asked for one and stays as it is."""
    NONE = auto()
    """The variable names others only."""


def selection(environment: str | None) -> Selection:
    """What a value of `VLLM_PLUGINS` says of this plugin."""
    if environment is None:
        return Selection.ON_REQUEST
    return Selection.NAMED if PLUGIN_NAME in environment.split(",") else Selection.NONE


def register() -> None:
    """Install the plugin in this process; raises if it is named and vLLM is not supported.

    Where it is not named, an engine of such a vLLM is refused once it has a setting of ours.
    """
    chosen = selection(os.environ.get("VLLM_PLUGINS"))
    if chosen is Selection.NONE:
        return
    import vllm

    from kvserving_kernels.errors import UnsupportedEngineError
    from kvserving_kernels.plugin.adapters import adapter_for, check_version

    if chosen is Selection.NAMED:
        adapter_for(vllm.__version__).install(True)
        return
    from kvserving_kernels.plugin.on_request import refuse_settings, wait_for_settings

    try:
        check_version(vllm.__version__)
    except UnsupportedEngineError as error:
        try:
            from vllm.platforms import current_platform

            refuse_settings(current_platform, str(error))
        except (ImportError, AttributeError):
            # Nothing is known of this version, and it may have no setting of ours.
            logger.warning("kvserving: settings in --additional-config are ignored: %s", error)
        return
    from vllm.config import get_current_vllm_config
    from vllm.platforms import current_platform

    wait_for_settings(
        current_platform,
        get_current_vllm_config,
        lambda: adapter_for(vllm.__version__).install(False),
    )
