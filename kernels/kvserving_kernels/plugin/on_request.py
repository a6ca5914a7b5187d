"""Waits in an engine that names no plugins until it asks for a format or an eviction of ours.

Without `VLLM_PLUGINS` vLLM loads every plugin that is installed. An engine that has no setting of
ours is to stay as it is, and whether it has one is only known when its configuration is there. So
all that it gets are two questions; the adapter comes once one of them is answered yes. A vLLM that
has no adapter gets the first question alone, and an answer of yes ends it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.formats.flags import OBJECT


def has_settings(vllm_config: Any) -> bool:
    """Whether a configuration has an object of ours, be it right or wrong."""
    # Other versions may not have the flag.
    additional = getattr(vllm_config, "additional_config", None)
    return isinstance(additional, Mapping) and OBJECT in additional


def wait_for_settings(
    platform: Any, current_config: Callable[[], Any], install: Callable[[], None]
) -> None:
    """Call `install` before a platform first sees a configuration with a setting of ours.

    A process that makes a configuration has it checked; a worker, which gets one that was made
    elsewhere, asks for attention backends, with `current_config` as its configuration.
    """
    owner = type(platform)
    if _asks(owner):
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


def refuse_settings(platform: Any, reason: str) -> None:
    """Raise UnsupportedEngineError when a platform first sees a setting of ours.

    Needs no more than the platform's check, which every version of vLLM calls with a finished
    configuration; AttributeError where there is none.
    """
    owner = type(platform)
    if _asks(owner):
        return
    check = owner.check_and_update_config

    def check_and_update_config(cls: Any, vllm_config: Any, *rest: Any, **named: Any) -> None:
        if has_settings(vllm_config):
            raise UnsupportedEngineError(f"--additional-config {OBJECT}: {reason}")
        check(vllm_config, *rest, **named)

    owner.check_and_update_config = classmethod(check_and_update_config)


def _asks(owner: Any) -> bool:
    """Whether a platform's class asks already; plugins may be loaded more than once."""
    return getattr(owner.check_and_update_config, "__module__", None) == __name__
