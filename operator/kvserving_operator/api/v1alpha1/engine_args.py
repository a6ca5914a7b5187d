"""Which engine flags `extraArgs` may not hold, and why.

A flag that repeats a typed field would silently override it, and the status would lie. The engine
accepts unambiguous abbreviations and underscores, so the comparison is by prefix after spelling
underscores as dashes.
"""

from typing import Annotated

from pydantic import StringConstraints

from kvserving_operator.api.base import matches
from kvserving_operator.api.rules import Checked, Rule, cel_string

_OPERATOR = "the operator"
_MULTI_NODE = "multi-node engines, which are not supported: one engine is one pod on one node"

# Flag of `vllm serve` -> who sets it instead.
OWNED_FLAGS: dict[str, str] = {
    "--model": "spec.model.uri",
    "--served-model-name": "spec.model.name",
    "--revision": "spec.model.revision",
    "--max-model-len": "spec.engine.maxModelLen",
    "--max-num-seqs": "spec.engine.maxNumSeqs",
    "--max-num-batched-tokens": "spec.engine.maxNumBatchedTokens",
    "--gpu-memory-utilization": "spec.engine.gpuMemoryUtilizationPercent",
    "--device-memory-utilization": "spec.engine.gpuMemoryUtilizationPercent",
    "--kv-cache-memory-bytes": "spec.engine.kvCacheMemory",
    "--block-size": "spec.engine.blockSize",
    "--tensor-parallel-size": "spec.engine.parallelism.tensor",
    "--pipeline-parallel-size": "spec.engine.parallelism.pipeline",
    "--enable-prefix-caching": "spec.engine.prefixCaching",
    "--no-enable-prefix-caching": "spec.engine.prefixCaching",
    "--enable-chunked-prefill": "spec.engine.chunkedPrefill",
    "--no-enable-chunked-prefill": "spec.engine.chunkedPrefill",
    "--quantization": "spec.engine.weightQuantization",
    "--kv-cache-dtype": "spec.kvCache.dtype",
    "--additional-config": "spec.kvCache.dtype",
    "--calculate-kv-scales": "spec.kvCache.dtype",
    "--max-num-active-seqs": "spec.tuning.knobs",
    "--host": _OPERATOR,
    "--port": _OPERATOR,
    "--uds": _OPERATOR,
    "--grpc-port": _OPERATOR,
    "--root-path": _OPERATOR,
    "--ssl-keyfile": _OPERATOR,
    "--ssl-certfile": _OPERATOR,
    "--config": _OPERATOR,
    "--custom-histogram-buckets": _OPERATOR,
    "--disable-log-stats": _OPERATOR,
    "--shutdown-timeout": "spec.rollout.drainSeconds",
    "--hf-token": "a Secret in spec.podTemplate.env",
    "--api-key": "spec.apiKeyRef",
    "--nnodes": _MULTI_NODE,
    "--node-rank": _MULTI_NODE,
    "--master-addr": _MULTI_NODE,
    "--master-port": _MULTI_NODE,
    "--data-parallel-address": _MULTI_NODE,
    "--data-parallel-rpc-port": _MULTI_NODE,
    "--data-parallel-backend": _MULTI_NODE,
    "--data-parallel-rank": _MULTI_NODE,
    "--data-parallel-start-rank": _MULTI_NODE,
    "--data-parallel-hybrid-lb": _MULTI_NODE,
    "--data-parallel-external-lb": _MULTI_NODE,
    "--headless": _MULTI_NODE,
}

ARGUMENT_PATTERN = r"^--[a-z0-9][A-Za-z0-9._-]*(=[^\x00-\x1f]*)?$"


def flag_of(argument: str) -> str:
    """Give the flag of an argument in the engine's long spelling: no value, dashes only."""
    return argument.split("=", 1)[0].split(".", 1)[0].replace("_", "-")


def owner_of(argument: str) -> str | None:
    """Say which field or part owns the flag of an argument; `None` when the user may set it."""
    flag = flag_of(argument)
    return next((owner for owned, owner in OWNED_FLAGS.items() if owned.startswith(flag)), None)


_CEL_FLAG = "self.split('=')[0].split('.')[0].replace('_', '-')"
_CEL_FLAGS = "[" + ", ".join(map(cel_string, OWNED_FLAGS)) + "]"
_CEL_PAIRS = (
    "["
    + ", ".join(f"[{cel_string(flag)}, {cel_string(owner)}]" for flag, owner in OWNED_FLAGS.items())
    + "]"
)

ExtraArg = Annotated[
    str,
    StringConstraints(min_length=3, max_length=1024),
    Checked(
        Rule(
            cel=f"self.matches(r'{ARGUMENT_PATTERN}')",
            holds=lambda argument: matches(ARGUMENT_PATTERN, argument),
            message='expected one flag of the form --flag or --flag=value, got "{self}"',
        ),
        Rule(
            cel="!self.contains('$(')",
            holds=lambda argument: "$(" not in argument,
            message='must not hold "$(", which the node would replace by a variable, got "{self}"',
        ),
        Rule(
            cel=f"!{_CEL_FLAGS}.exists(flag, flag.startsWith({_CEL_FLAG}))",
            holds=lambda argument: owner_of(argument) is None,
            message="this flag belongs to a typed field or to the operator",
            message_cel="'\"%s\" belongs to %s'.format([self, "
            f"{_CEL_PAIRS}.filter(pair, pair[0].startsWith({_CEL_FLAG}))[0][1]])",
            message_python=lambda argument: f'"{argument}" belongs to {owner_of(argument)}',
        ),
    ),
]
