"""End the trial under way; without one, go back to 16 bits without eviction, and to the spec's cap.

The way back never waits for a trial.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from kvserving_kubectl import lookup
from kvserving_kubectl.api import Object
from kvserving_kubectl.changing import Change, carry_out
from kvserving_kubectl.context import Context
from kvserving_kubectl.errors import NotFound, UsageError
from kvserving_kubectl.options import add_change, add_serving, add_trial
from kvserving_kubectl.output import say
from kvserving_kubectl.resources import KVPOLICIES, KVSERVINGS, KVTRIALS
from kvserving_operator.api.v1alpha1 import Control, EvictionPolicy, KVCacheDType

SIXTEEN_BITS = (KVCacheDType.AUTO, KVCacheDType.BFLOAT16, KVCacheDType.FLOAT16)
NO_EVICTION = {"policy": EvictionPolicy.NONE.value}
DTYPE, EVICTION, CAP = "KVCacheDType", "Eviction", "MaxActiveSeqs"
PARTS = ("All", "KVCache", CAP)


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_serving(parser)
    add_trial(parser)
    parser.add_argument(
        "--part", choices=PARTS, default="All",
        help="without a trial: what is taken back of format and eviction, and the promoted cap",
    )  # fmt: skip
    add_change(parser)


def run(context: Context) -> None:
    """Do it."""
    options, namespace = context.options, context.namespace
    found = lookup.chosen(context.api, namespace, options.name, options.trial)
    if found is not None:
        name, status = found["metadata"]["name"], found.get("status") or {}
        patch = {"spec": {"control": Control.ROLL_BACK.value}}
        words = f"ends the trial of {status.get('summary') or found['spec']['change']}"
        effect = "Engines with the change go back to what was in force, while they serve."
        changes = [Change(KVTRIALS, namespace, name, patch, words)]
    else:
        serving = lookup.serving(context.api, namespace, options.name)
        changes = way_back(context, serving, options.part)
        effect = (
            "Engines take it while they serve, one after another; requests in flight are computed "
            "again. No trial is made of it."
        )
    if not changes:
        raise UsageError(
            f"{options.name} has no trial under way, runs 16 bits without eviction, and nothing "
            "was promoted: there is nothing to take back"
        )
    if carry_out(context, changes, effect):
        say(context.out, f"Done. `kubectl kvserving status {options.name} --watch` shows it.")


def way_back(context: Context, serving: Object, part: str) -> list[Change]:
    """Patches that lead back to 16 bits without eviction, and to the spec's cap."""
    changes: list[Change] = []
    promoted = {
        each["field"]: each["value"] for each in (serving.get("status") or {}).get("promoted") or ()
    }
    if part in ("All", "KVCache"):
        changes += _kv_cache(context, serving, promoted)
    if part in ("All", CAP) and CAP in promoted:
        meta = serving["metadata"]
        rest = [each for each in serving["status"]["promoted"] if each["field"] != CAP]
        words = f"the cap of {promoted[CAP]} active sequences goes back to the spec's"
        patch = {"status": {"promoted": rest}}
        where = meta["namespace"], meta["name"]
        changes.append(Change(KVSERVINGS, *where, patch, words, subresource="status"))
    return changes


def _kv_cache(context: Context, serving: Object, promoted: Mapping[str, str]) -> list[Change]:
    meta, spec = serving["metadata"], serving["spec"]
    where = meta["namespace"], meta["name"]
    asked = spec.get("kvCache") or {}
    target = fallback(context, serving)
    back = {"spec": {"kvCache": {"dtype": target, "eviction": _only(asked, NO_EVICTION)}}}
    if not is_safe(asked):
        words = f"spec.kvCache goes from {in_words(asked)} back to {target} without eviction"
        return [Change(KVSERVINGS, *where, back, words)]
    if EVICTION in promoted:
        raise UsageError(
            f"a trial promoted eviction ({promoted[EVICTION]}) beside spec.kvCache, which says "
            "16 bits already: edit spec.kvCache.dtype to another name of 16 bits, auto, bfloat16 "
            "or float16, to end that"
        )
    if DTYPE not in promoted:
        return []
    # What a trial promoted beside the spec ends with an edit of the field. The spec asks for 16
    # bits already, so it first takes up what is in force, which changes no engine.
    value = promoted[DTYPE]

    def ended() -> bool:
        found = context.api.get(KVSERVINGS, *where)
        left = (found.get("status") or {}).get("promoted") or ()
        return all(each["field"] != DTYPE for each in left)

    return [
        Change(
            KVSERVINGS, *where, {"spec": {"kvCache": {"dtype": value}}},
            f"spec.kvCache.dtype takes up {value}, which a trial promoted and engines run",
            wait=ended, waits_for="the operator takes note of the edit",
        ),
        Change(
            KVSERVINGS, *where, {"spec": {"kvCache": {"dtype": target}}},
            f"spec.kvCache.dtype goes back to {target}",
        ),
    ]  # fmt: skip


def is_safe(kv_cache: Mapping[str, Any]) -> bool:
    """Whether `spec.kvCache` keeps every token in 16 bits."""
    policy = (kv_cache.get("eviction") or {}).get("policy", EvictionPolicy.NONE.value)
    return kv_cache.get("dtype", "auto") in SIXTEEN_BITS and policy == EvictionPolicy.NONE.value


def in_words(kv_cache: Mapping[str, Any]) -> str:
    """Format and eviction of a spec."""
    policy = (kv_cache.get("eviction") or {}).get("policy", EvictionPolicy.NONE.value)
    dtype = str(kv_cache.get("dtype", "auto"))
    return dtype if policy == EvictionPolicy.NONE.value else f"{dtype} with {policy}"


def fallback(context: Context, serving: Object) -> str:
    """Format to go back to: the spec's own if it is one of 16 bits, else the policy's fallback."""
    spec = serving["spec"]
    dtype = (spec.get("kvCache") or {}).get("dtype", KVCacheDType.AUTO.value)
    if dtype in SIXTEEN_BITS:
        return str(dtype)
    reference = spec.get("rollbackPolicyRef")
    if reference:
        try:
            policy = context.api.get(
                KVPOLICIES, serving["metadata"]["namespace"], reference["name"]
            )
        except NotFound:
            return KVCacheDType.AUTO.value
        found = (policy["spec"].get("fallback") or {}).get("kvCacheDtype")
        return str(found or KVCacheDType.AUTO.value)
    return KVCacheDType.AUTO.value


def _only(asked: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What a merge patch needs to leave nothing of an eviction but what is wanted."""
    before = asked.get("eviction") or {}
    return {**dict.fromkeys(before, None), **wanted}
