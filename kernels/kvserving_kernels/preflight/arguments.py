"""Arguments of `vllm serve` as the checks need them, read without vLLM.

This is no parser: it finds the few values that the cheap checks look at, and vLLM's own parser
judges the rest.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvserving_kernels.errors import InvalidSettingError
from kvserving_kernels.eviction import NO_EVICTION, Eviction
from kvserving_kernels.formats.flags import dtype_in
from kvserving_kernels.plugin.settings import read_settings as read_plugin_settings

_PARALLEL: Final = ("--tensor", "-tp", "--pipeline", "-pp", "--decode-context", "-dcp")


@dataclass(frozen=True)
class Settings:
    """Values as written, None where an argument is absent."""

    model: str | None
    kv_cache_dtype: str
    dtype: str
    max_model_len: str | None
    max_num_seqs: str | None
    max_num_batched_tokens: str | None
    block_size: str | None
    kv_cache_memory_bytes: str | None
    is_parallel: bool
    eviction: Eviction = NO_EVICTION


def read_settings(arguments: Sequence[str]) -> Settings:
    """Find the values; the last mention of a flag counts, as in vLLM's parser."""
    additional = _option(arguments, "additional-config")
    return Settings(
        model=_model(arguments),
        kv_cache_dtype=dtype_in(additional) or _option(arguments, "kv-cache-dtype") or "auto",
        dtype=_option(arguments, "dtype") or "auto",
        max_model_len=_option(arguments, "max-model-len"),
        max_num_seqs=_option(arguments, "max-num-seqs"),
        max_num_batched_tokens=_option(arguments, "max-num-batched-tokens"),
        block_size=_option(arguments, "block-size"),
        kv_cache_memory_bytes=_option(arguments, "kv-cache-memory-bytes"),
        is_parallel=any(argument.startswith(_PARALLEL) for argument in arguments),
        eviction=_eviction(additional),
    )


def strip_command(arguments: Sequence[str]) -> list[str]:
    """Drop a leading `--` and `vllm serve`, so that a whole command line may be given."""
    rest = list(arguments)
    for word in ("--", "vllm", "serve"):
        if rest[:1] == [word]:
            rest = rest[1:]
    return rest


def _model(arguments: Sequence[str]) -> str | None:
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    return _option(arguments, "model")


def _eviction(additional_config: str | None) -> Eviction:
    """Eviction that is asked for; what cannot be read is refused by vLLM's configuration."""
    try:
        return read_plugin_settings(json.loads(additional_config or "{}")).eviction
    except (ValueError, InvalidSettingError):
        return NO_EVICTION


def _option(arguments: Sequence[str], name: str) -> str | None:
    found = None
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        # vLLM takes underscores for dashes in the names of flags.
        if flag.replace("_", "-") != f"--{name}":
            continue
        if equals:
            found = value
        elif index + 1 < len(arguments):
            found = arguments[index + 1]
    return found
