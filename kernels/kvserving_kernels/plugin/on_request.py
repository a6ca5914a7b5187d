"""Waits in an engine that names no plugins until it asks for a format or an eviction of ours.

Without `VLLM_PLUGINS` vLLM loads every plugin that is installed. An engine that has no setting of
ours is to stay as it is, and whether it has one is only known when its configuration is there. So
all that it gets are two questions; the adapter comes once one of them is answered yes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kvserving_kernels.formats.flags import OBJECT


def has_settings(vllm_config: Any) -> bool:
    """Whether a configuration has an object of ours, be it right or wrong."""
    additional = vllm_config.additional_config
    return isinstance(additional, Mapping) and OBJECT in additional


def wait_for_settings(
    platform: Any, current_config: Callable[[], Any], install: Callable[[], None]
) -> None:
    """Call `install` before a platform first sees a configuration with a setting of ours.

    A process that makes a configuration has it checked; a worker, which gets one that was made
    elsewhere, asks for attention backends, with `current_config` as its configuration.
    """
    owner = type(platform)
    if getattr(owner.check_and_update_config, "__module__", None) == __name__:
        return
    check, choose = owner.check_and_update_config, owner.get_attn_backend_cls
    waits = True

    def comes(vllm_config: Any) -> bool:
        nonlocal waits
        if not waits or not has_settings(vllm_config):
            return False
        install()
        # The adapter has wrapped these two: from now on they pass on what they are asked.
        waits = False
        return True

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        now = owner.check_and_update_config if comes(vllm_config) else check
        now(vllm_config)

    def get_attn_backend_cls(cls: Any, *arguments: Any, **named: Any) -> Any:
        now = owner.get_attn_backend_cls if waits and comes(current_config()) else choose
        return now(*arguments, **named)

    owner.check_and_update_config = classmethod(check_and_update_config)
    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)
