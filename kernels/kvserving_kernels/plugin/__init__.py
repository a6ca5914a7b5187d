"""The vLLM plugin: `register` is what vLLM calls in each of its processes."""

import os
from typing import Final

PLUGIN_NAME: Final = "kvserving"


def selected(environment: str | None) -> bool:
    """Whether `VLLM_PLUGINS` names this plugin.

    vLLM loads every installed general plugin when the variable is unset; this one changes how an
    engine starts, so it wants to be asked for by name, as plugins with endpoints must be anyway.
    """
    return environment is not None and PLUGIN_NAME in environment.split(",")


def register() -> None:
    """Install the plugin in this process if it is selected; raises if vLLM is not supported."""
    if not selected(os.environ.get("VLLM_PLUGINS")):
        return
    import vllm

    from kvserving_kernels.plugin.adapters import adapter_for

    adapter_for(vllm.__version__).install()
