"""Arguments of `vllm serve` as the checks need them, read without vLLM.

This is no parser: it finds the few values that the cheap checks look at, and vLLM's own parser
judges the rest.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kvserving_kernels.errors import InvalidSettingError
from kvserving_kernels.formats.flags import dtype_in
from kvserving_kernels.plugin.settings import Settings as PluginSettings
from kvserving_kernels.plugin.settings import read_settings as read_plugin_settings

_CONTEXT_PARALLEL: Final = ("--decode-context", "-dcp", "--prefill-context", "-pcp")
_OTHER_CONFIGS: Final = ("--hf-overrides", "--hf-config-path", "--config-format")


@dataclass(frozen=True)
class Settings:
    """Values as written, None where an argument is absent."""

    model: str | None
    kv_cache_dtype: str
    dtype: str
    max_model_len: str | None = None
    max_num_seqs: str | None = None
    max_num_batched_tokens: str | None = None
    block_size: str | None = None
    kv_cache_memory_bytes: str | None = None
    num_gpu_blocks_override: str | None = None
    tensor_parallel_size: str | None = None
    pipeline_parallel_size: str | None = None
    data_parallel_size: str | None = None
    attention_backend: str | None = None
    load_format: str | None = None
    quantization: str | None = None
    revision: str | None = None
    serves: bool = True
    """Whether there is an HTTP server at all."""
    chunks_prompts: bool = True
    slides: bool = True
    """Whether layers with a sliding window use it."""
    is_context_parallel: bool = False
    speculates: bool = False
    transfers: bool = False
    """Whether a KV connector is named."""
    offloads: bool = False
    """Whether a size is given, from which vLLM makes a KV connector."""
    skips_layers: bool = False
    """Whether layers are named that are not to have the KV format."""
    has_other_config: bool = False
    """Whether the model's config.json is not, or not all of, what the engine goes by."""
    plugin: PluginSettings = field(default_factory=PluginSettings)
    plugin_error: InvalidSettingError | None = None


def read_settings(arguments: Sequence[str]) -> Settings:
    """Find the values; the last mention of a flag counts, as in vLLM's parser."""
    additional = _option(arguments, "--additional-config")
    plugin, plugin_error = _plugin(additional)
    return Settings(
        model=_model(arguments),
        kv_cache_dtype=dtype_in(additional) or _option(arguments, "--kv-cache-dtype") or "auto",
        dtype=_option(arguments, "--dtype") or "auto",
        max_model_len=_option(arguments, "--max-model-len"),
        max_num_seqs=_option(arguments, "--max-num-seqs"),
        max_num_batched_tokens=_option(arguments, "--max-num-batched-tokens"),
        block_size=_option(arguments, "--block-size"),
        kv_cache_memory_bytes=_option(arguments, "--kv-cache-memory-bytes"),
        num_gpu_blocks_override=_option(arguments, "--num-gpu-blocks-override"),
        tensor_parallel_size=_option(arguments, "--tensor-parallel-size", "-tp"),
        pipeline_parallel_size=_option(arguments, "--pipeline-parallel-size", "-pp"),
        data_parallel_size=_option(arguments, "--data-parallel-size", "-dp"),
        attention_backend=_option(arguments, "--attention-backend"),
        load_format=_option(arguments, "--load-format"),
        quantization=_option(arguments, "--quantization", "-q"),
        revision=_option(arguments, "--revision"),
        serves=not _has(arguments, "--headless")
        and _option(arguments, "--api-server-count") != "0",
        chunks_prompts=not _has(arguments, "--no-enable-chunked-prefill"),
        slides=not _has(arguments, "--disable-sliding-window"),
        is_context_parallel=_has(arguments, *_CONTEXT_PARALLEL),
        speculates=_has(arguments, "--speculative", "--spec-", "-sc"),
        transfers=_has(arguments, "--kv-transfer-config"),
        offloads=_has(arguments, "--kv-offloading-size"),
        skips_layers=_has(arguments, "--kv-cache-dtype-skip-layers"),
        has_other_config=_has(arguments, *_OTHER_CONFIGS),
        plugin=plugin,
        plugin_error=plugin_error,
    )


def strip_command(arguments: Sequence[str]) -> list[str]:
    """Drop a leading `--` and `vllm serve`, so that a whole command line may be given."""
    rest = list(arguments)
    for word in ("--", "vllm", "serve"):
        if rest[:1] == [word]:
            rest = rest[1:]
    return rest


def number(text: str | None) -> int | None:
    """Plain integers only: vLLM also takes `8k` and `auto`, which it resolves itself."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _model(arguments: Sequence[str]) -> str | None:
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    return _option(arguments, "--model")


def _plugin(additional_config: str | None) -> tuple[PluginSettings, InvalidSettingError | None]:
    """What the plugin is asked for, or what is wrong with that; JSON itself is vLLM's to judge."""
    try:
        return read_plugin_settings(json.loads(additional_config or "{}")), None
    except InvalidSettingError as error:
        return PluginSettings(), error
    except ValueError:
        return PluginSettings(), None


def _has(arguments: Sequence[str], *starts: str) -> bool:
    return any(argument.replace("_", "-").startswith(starts) for argument in arguments)


def _option(arguments: Sequence[str], *names: str) -> str | None:
    found = None
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        # vLLM takes underscores for dashes in the names of flags.
        if flag.replace("_", "-") not in names:
            continue
        if equals:
            found = value
        elif index + 1 < len(arguments):
            found = arguments[index + 1]
    return found
