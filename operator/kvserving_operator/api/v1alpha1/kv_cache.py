"""`spec.kvCache`: how keys and values are kept."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kvserving_kernels.formats import KVCacheDType
from kvserving_operator.api.base import ApiModel
from kvserving_operator.api.rules import Rule


class EvictionPolicy(StrEnum):
    """Which tokens leave the cache before their request ends."""

    NONE = "None"
    STREAMING_LLM = "StreamingLLM"
    H2O = "H2O"
    SNAP_KV = "SnapKV"


_BUDGET_POLICIES = (EvictionPolicy.H2O, EvictionPolicy.SNAP_KV)


class EvictionSpec(ApiModel):
    """What is dropped from the cache while a request runs."""

    rules = (
        Rule(
            cel="self.policy == 'StreamingLLM' ? has(self.windowTokens) : !has(self.windowTokens)",
            holds=lambda spec: (
                (spec.policy == EvictionPolicy.STREAMING_LLM) == (spec.window_tokens is not None)
            ),
            message="is required by policy StreamingLLM and used by no other,"
            " policy is {self.policy}",
            field="windowTokens",
        ),
        Rule(
            cel="!has(self.sinkTokens) || self.policy == 'StreamingLLM'",
            holds=lambda spec: (
                spec.sink_tokens is None or spec.policy == EvictionPolicy.STREAMING_LLM
            ),
            message="is used by policy StreamingLLM only, policy is {self.policy}",
            field="sinkTokens",
        ),
        Rule(
            cel="self.policy in ['H2O', 'SnapKV'] ? has(self.budgetPercent)"
            " : !has(self.budgetPercent)",
            holds=lambda spec: (
                (spec.policy in _BUDGET_POLICIES) == (spec.budget_percent is not None)
            ),
            message="is required by policies H2O and SnapKV and used by no other;"
            " policy is {self.policy}",
            field="budgetPercent",
        ),
    )

    policy: EvictionPolicy = EvictionPolicy.NONE
    """Rule that picks the tokens to drop; `None` keeps every token."""
    sink_tokens: Annotated[int, Field(ge=0, le=4096)] | None = None
    """First tokens of a sequence that StreamingLLM always keeps, in tokens; the engine's
    default is 4."""
    window_tokens: Annotated[int, Field(ge=16, le=10_000_000)] | None = None
    """Latest tokens that StreamingLLM keeps, in tokens."""
    budget_percent: Annotated[int, Field(ge=1, le=99)] | None = None
    """Share of a prompt's tokens that H2O and SnapKV keep, in percent."""


class KVCacheSpec(ApiModel):
    """Format and eviction of the KV cache."""

    dtype: KVCacheDType = KVCacheDType.AUTO
    """Format in which keys and values are kept; `auto` follows the engine's `--dtype`. Engines that
    offer a format live take an edit while they serve; else pods are replaced. Under a policy it is
    tried first. Served today are `auto`, `bfloat16`, `float16`, `fp8_e4m3` where the machine can,
    and with the plugin `int8`, `k8v4`, `int4`, `int4_hadamard`, `int2`, `k2v4`; others are refused
    in status."""
    eviction: EvictionSpec = Field(default_factory=EvictionSpec, json_schema_extra={"default": {}})
    """What is dropped from the cache while a request runs; the default drops nothing."""
