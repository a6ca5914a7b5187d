"""`spec.engine`: the vLLM process behind one replica."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from kvserving_operator.api.base import (
    ApiModel,
    Atomic,
    ImageName,
    ObjectName,
    Percent,
    Quantity,
)
from kvserving_operator.api.quantity import quantity_value
from kvserving_operator.api.rules import Checked, Rule
from kvserving_operator.api.v1alpha1.engine_args import ExtraArg

MAX_GPUS_PER_NODE = 16
DEFAULT_BATCHED_TOKENS = 2048
"""vLLM's default for tokens of a step on CPUs and on GPUs with less than 70 GiB."""


class Accelerator(StrEnum):
    """What the engine computes on."""

    CPU = "CPU"
    NVIDIA = "NVIDIA"


_BLOCK_MULTIPLES = {Accelerator.CPU: 32, Accelerator.NVIDIA: 16}


class Switch(StrEnum):
    """Whether an engine feature is used."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Parallelism(ApiModel):
    """How many GPUs one engine spans."""

    rules = (
        Rule(
            cel=f"self.tensor * self.pipeline <= {MAX_GPUS_PER_NODE}",
            holds=lambda spec: spec.tensor * spec.pipeline <= MAX_GPUS_PER_NODE,
            message=f"tensor x pipeline must be at most {MAX_GPUS_PER_NODE}, got"
            " {self.tensor} x {self.pipeline}: one engine is one pod on one node, multi-node"
            " engines are not supported",
        ),
    )

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs (or CPU ranks) that share every layer."""
    pipeline: Annotated[int, Field(ge=1, le=64)] = 1
    """Groups of layers, each on its own GPUs, within one node."""


class CompileCache(ApiModel):
    """Where compiled graphs and kernels outlive a pod."""

    claim_name: ObjectName
    """PersistentVolumeClaim in the same namespace, writable by every engine pod."""


def _unbatched(spec: "EngineSpec") -> bool:
    """Whether a whole prompt must fit one step and cannot."""
    return (
        spec.chunked_prefill is Switch.DISABLED
        and spec.max_num_batched_tokens is not None
        and spec.max_model_len is not None
        and spec.max_num_batched_tokens < spec.max_model_len
    )


def _is_a_mebibyte(quantity: str) -> bool:
    return quantity_value(quantity) >= 1 << 20


def _batches(spec: "EngineSpec") -> bool:
    """Whether a step has a token for every sequence, whatever the engine's default is."""
    return spec.max_num_batched_tokens is not None or spec.max_num_seqs <= DEFAULT_BATCHED_TOKENS


def _block_fits(spec: "EngineSpec") -> bool:
    return spec.block_size is None or spec.block_size % _BLOCK_MULTIPLES[spec.accelerator] == 0


class EngineSpec(ApiModel):
    """Engine image and start-up settings; a change replaces the pods."""

    rules = (
        Rule(
            cel="!has(self.maxNumBatchedTokens) || self.maxNumBatchedTokens >= self.maxNumSeqs",
            holds=lambda spec: (
                spec.max_num_batched_tokens is None
                or spec.max_num_batched_tokens >= spec.max_num_seqs
            ),
            message="must be at least spec.engine.maxNumSeqs ({self.maxNumSeqs}),"
            " got {self.maxNumBatchedTokens}",
            field="maxNumBatchedTokens",
        ),
        Rule(
            cel=f"has(self.maxNumBatchedTokens) || self.maxNumSeqs <= {DEFAULT_BATCHED_TOKENS}",
            holds=_batches,
            message=f"is required where maxNumSeqs is above {DEFAULT_BATCHED_TOKENS}, which is what"
            " an engine may have by default, and must be at least as large:"
            " maxNumSeqs is {self.maxNumSeqs}",
            field="maxNumBatchedTokens",
        ),
        Rule(
            cel="!has(self.blockSize)"
            " || self.blockSize % (self.accelerator == 'CPU' ? 32 : 16) == 0",
            holds=_block_fits,
            message="must be a multiple of 32 with accelerator CPU and of 16 with NVIDIA,"
            " accelerator is {self.accelerator}, got {self.blockSize}",
            field="blockSize",
        ),
        Rule(
            cel="self.chunkedPrefill != 'Disabled' || !has(self.maxNumBatchedTokens)"
            " || !has(self.maxModelLen) || self.maxNumBatchedTokens >= self.maxModelLen",
            holds=lambda spec: not _unbatched(spec),
            message="must be at least spec.engine.maxModelLen ({self.maxModelLen}) while"
            " chunkedPrefill is Disabled, got {self.maxNumBatchedTokens}",
            field="maxNumBatchedTokens",
        ),
        Rule(
            cel="!has(self.gpuMemoryUtilizationPercent) || self.accelerator == 'NVIDIA'",
            holds=lambda spec: (
                spec.gpu_memory_utilization_percent is None
                or spec.accelerator is Accelerator.NVIDIA
            ),
            message="applies to accelerator NVIDIA only, accelerator is {self.accelerator},"
            " set spec.engine.kvCacheMemory instead",
            field="gpuMemoryUtilizationPercent",
        ),
        Rule(
            cel="self.accelerator != 'NVIDIA' || !has(self.gpuMemoryUtilizationPercent)"
            " || !has(self.kvCacheMemory)",
            holds=lambda spec: (
                spec.accelerator is not Accelerator.NVIDIA
                or spec.gpu_memory_utilization_percent is None
                or spec.kv_cache_memory is None
            ),
            message="set either kvCacheMemory or gpuMemoryUtilizationPercent, not both:"
            " each of them sizes the KV cache",
            field="kvCacheMemory",
        ),
        Rule(
            cel="self.accelerator != 'CPU' || has(self.kvCacheMemory)",
            holds=lambda spec: (
                spec.accelerator is not Accelerator.CPU or spec.kv_cache_memory is not None
            ),
            message="is required with accelerator CPU: without it the engine claims nearly all"
            " of the node's memory",
            field="kvCacheMemory",
        ),
    )

    image: ImageName | None = None
    """Engine image; the default is the operator's image for the accelerator."""
    version: (
        Annotated[
            str,
            StringConstraints(
                max_length=32,
                pattern=r"^[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4})?([.+-][A-Za-z0-9.]+)?$",
            ),
        ]
        | None
    ) = None
    """Version of vLLM in the image, for flags and metric names before the engine has reported its
    own; the default is the version of the operator's image."""
    accelerator: Accelerator = Accelerator.CPU
    """What the engine computes on; NVIDIA requests tensor x pipeline GPUs for each pod."""
    plugin: Switch = Switch.ENABLED
    """Whether the image carries the KVServing plugin; Disabled serves a stock image, whose live
    settings need a restart."""
    max_model_len: Annotated[int, Field(ge=16, le=10_000_000)] | None = None
    """Longest prompt plus answer, in tokens; the default is the model's own limit."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Sequences that the engine reserves room for; the tuner moves the active number within it."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Tokens that one engine step may process; the default is the engine's own for the
    accelerator."""
    gpu_memory_utilization_percent: Annotated[Percent, Field(ge=1)] | None = None
    """Share of GPU memory for weights and KV cache, in percent; the engine's default is 92."""
    kv_cache_memory: (
        Annotated[
            Quantity,
            Checked(
                Rule(
                    cel="isQuantity(string(self))"
                    " && quantity(string(self)).compareTo(quantity('1Mi')) >= 0",
                    holds=_is_a_mebibyte,
                    message="expected a quantity of at least 1Mi such as 512Mi or 40Gi,"
                    ' got "{self}"',
                )
            ),
        ]
        | None
    ) = None
    """Memory of the KV cache of each worker (tensor x pipeline in a pod), as a quantity in bytes
    (`512Mi`), with room for one request of maxModelLen and one block more; required on CPU."""
    block_size: Literal[8, 16, 32, 64, 128, 256] | None = None
    """Tokens in one cache block; the default is the engine's own for the accelerator."""
    parallelism: Parallelism = Field(default_factory=Parallelism, json_schema_extra={"default": {}})
    """How many GPUs one engine spans; the default is one."""
    prefix_caching: Switch = Switch.ENABLED
    """Whether requests share the cache of a common prefix."""
    chunked_prefill: Switch = Switch.ENABLED
    """Whether long prompts are processed in parts between decode steps."""
    weight_quantization: (
        Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9_-]+$")]
        | None
    ) = None
    """Method by which the weights are quantized, in the engine's spelling; the default is what
    the model's configuration says."""
    compile_cache: CompileCache | None = None
    """Volume for compiled graphs and kernels; the default is an empty folder for each pod."""
    extra_args: Annotated[tuple[ExtraArg, ...], Field(max_length=64), Atomic] = ()
    """Further engine flags, each `--flag` or `--flag=value`; flags with a field of their own are
    refused."""
