"""Serves a prompt and prints what came of it, how the engine was set up, and what vLLM consists of.

Usage: in_process.py MODEL absent|installed, in the engine's Python. `absent` takes this package's
entry points away before vLLM looks for any, and the package with them.
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import cached_property, partial, wraps
from importlib import metadata
from importlib.abc import MetaPathFinder
from types import FunctionType, MethodType, ModuleType
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

PACKAGE = "kvserving_kernels"
ENDPOINTS = "vllm.endpoint_plugins"
PROMPT = [(7 * place * place + 3 * place) % 900 + 5 for place in range(200)]


class Missing(MetaPathFinder):
    """Finds nothing of the package, so that whoever imports it fails."""

    def find_spec(self, name: str, *_: object) -> None:
        """Nothing, or an error."""
        if name.partition(".")[0] == PACKAGE:
            raise ModuleNotFoundError(f"{name} is taken away")


def take_away() -> int:
    """Hide the package and its entry points; returns how many there were."""
    original: Any = metadata.entry_points
    ours = [
        point
        for point in (*original(group="vllm.general_plugins"), *original(group=ENDPOINTS))
        if point.value.startswith(f"{PACKAGE}.")
    ]

    # Modules of vLLM's hold it under its own name.
    @wraps(original)
    def entry_points(**selected: Any) -> metadata.EntryPoints:
        return metadata.EntryPoints(point for point in original(**selected) if point not in ours)

    vars(metadata)["entry_points"] = entry_points
    sys.meta_path.insert(0, Missing())
    return len(ours)


def functions(owner: Any, path: str) -> Iterator[tuple[str, str]]:
    """Functions of a module or class by path, and where each was written."""
    for name, value in list(vars(owner).items()):
        found = _written(value)
        if isinstance(found, FunctionType):
            yield f"{path}.{name}", f"{found.__module__}.{found.__qualname__}"


def _written(value: Any) -> Any:
    """The function in what may hold one.

    Only of these kinds are attributes asked for: others load a library for whatever is asked.
    """
    match value:
        case staticmethod() | classmethod() | MethodType():
            return value.__func__
        case partial() | cached_property():
            return value.func
        case property():
            return value.fget
    return value


def vllm_functions() -> dict[str, str]:
    """Every function of the modules of vLLM's that are loaded, and of their classes."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "vllm" or not isinstance(module, ModuleType):
            continue
        found.update(functions(module, name))
        for attribute, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == name:
                found.update(functions(value, f"{name}.{attribute}"))
    return found


def serve(model: str) -> dict[str, Any]:
    """What an engine with a model answers, and how it was set up."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model, enforce_eager=True, max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=256,
        kv_cache_memory_bytes=64 << 20,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True, logprobs=2)
    [answer] = llm.generate([{"prompt_token_ids": PROMPT}], sampling)
    [completion] = answer.outputs
    core: Any = llm.llm_engine.engine_core.engine_core
    config, kv_cache = core.vllm_config, core.scheduler.kv_cache_config
    layers = config.compilation_config.static_forward_context
    return {
        "answer": {
            "tokens": list(completion.token_ids),
            "logprobs": [
                {str(token): one.logprob for token, one in row.items()}
                for row in completion.logprobs
            ],
        },
        "setting": {
            "cache": repr(config.cache_config),
            "scheduler": repr(config.scheduler_config),
            "attention": repr(config.attention_config),
            "additional": repr(config.additional_config),
            "blocks": kv_cache.num_blocks,
            "specs": [repr(group.kv_cache_spec) for group in kv_cache.kv_cache_groups],
            "managers": [
                type(manager).__qualname__
                for manager in core.scheduler.kv_cache_manager.coordinator.single_type_managers
            ],
            "backends": {
                name: [_path(layer.attn_backend), _path(type(layer.impl))]
                for name, layer in layers.items()
            },
            "scheduler_class": _path(type(core.scheduler)),
        },
    }


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def main(model: str, how: str) -> None:
    """Print what was found."""
    taken = take_away() if how == "absent" else 0
    before = set(os.environ)
    found = {
        **serve(model),
        "taken_away": taken,
        "variables": sorted(set(os.environ) - before),
        "ours": sorted(name for name in sys.modules if name.partition(".")[0] == PACKAGE),
        "functions": vllm_functions(),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
