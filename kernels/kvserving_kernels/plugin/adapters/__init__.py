"""One module per supported vLLM minor version; only these touch vLLM's insides."""

from importlib import import_module
from typing import Final, Protocol

from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.plugin.link import EngineLink
from kvserving_kernels.plugin.readiness import EngineProbe

_ADAPTERS: Final = {"0.32": "kvserving_kernels.plugin.adapters.v0_32"}

SUPPORTED: Final = tuple(_ADAPTERS)
"""vLLM minor versions that have an adapter."""


class Adapter(Protocol):
    """What a version's module offers."""

    def install(self, named: bool) -> None:
        """Put the plugin's hooks into this process; safe to call again.

        Unless the plugin is `named`, they leave an engine without a setting of ours as it is; one
        process may build others beside the engine that asked for them.
        """
        ...

    def link(self, engine_client: object) -> EngineLink:
        """The way from the HTTP server to the engine core."""
        ...

    def probe(self, engine_client: object) -> EngineProbe:
        """The way to see, and cause, tokens coming out of the engine."""
        ...


def base_version(version: str) -> str:
    """Version without a local part: `0.32.0+cpu` is `0.32.0`."""
    return version.partition("+")[0]


def check_version(version: str) -> str:
    """Minor version of a vLLM that has an adapter; UnsupportedEngineError naming those that do."""
    minor = ".".join(version.split(".")[:2])
    if minor not in _ADAPTERS:
        raise UnsupportedEngineError(
            f"the kvserving plugin does not support vLLM {version}; it supports "
            f"{', '.join(f'{name}.x' for name in SUPPORTED)}. Use an engine image with one of "
            "these, or start vLLM without kvserving in VLLM_PLUGINS and --additional-config"
        )
    return minor


def adapter_for(version: str) -> Adapter:
    """Adapter of a vLLM version; raises UnsupportedEngineError naming those that have one."""
    adapter: Adapter = import_module(_ADAPTERS[check_version(version)])
    return adapter
