"""Waits in an engine that names no plugins until it asks for a format or an eviction of ours.

Without `VLLM_PLUGINS` vLLM loads every plugin that is installed. An engine that has no setting of
ours is to stay as it is, and whether it has one is only known when its configuration is there. So
all that it gets are these two questions; the adapter takes their place once one is answered yes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvserving_kernels.formats.flags import OBJECT

METHODS: Final = ("check_and_update_config", "get_attn_backend_cls")
"""Of a platform of vLLM's: the first sees each configuration, in the process that makes it, the
second is called in each worker, which gets a configuration that was made elsewhere."""


def has_settings(vllm_config: Any) -> bool:
    """Whether a configuration has an object of ours, be it right or wrong."""
    additional = vllm_config.additional_config
    return isinstance(additional, Mapping) and OBJECT in additional


def wait_for_settings(
    platform: Any, current_config: Callable[[], Any], install: Callable[[], None]
) -> None:
    """Call `install` before a platform first sees a configuration with a setting of ours.

    `current_config` gives the configuration that a worker's model is built with.
    """
    owner = type(platform)
    if getattr(owner.check_and_update_config, "__module__", None) == __name__:
        return
    own = {name: vars(owner).get(name) for name in METHODS}
    check, choose = (getattr(owner, name) for name in METHODS)

    def give_way() -> None:
        for name, method in own.items():
            if method is None:
                delattr(owner, name)
            else:
                setattr(owner, name, method)
        install()

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        if not has_settings(vllm_config):
            check(vllm_config)
            return
        give_way()
        owner.check_and_update_config(vllm_config)

    def get_attn_backend_cls(cls: Any, *arguments: Any, **named: Any) -> Any:
        if not has_settings(current_config()):
            return choose(*arguments, **named)
        give_way()
        return owner.get_attn_backend_cls(*arguments, **named)

    owner.check_and_update_config = classmethod(check_and_update_config)
    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)
