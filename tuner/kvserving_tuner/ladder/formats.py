"""The rungs of the KV cache's format: fewer bits hold more sequences, and only then pay."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kvserving_kernels.formats import record_bytes
from kvserving_tuner.decision import CostClass, Knob, Reason
from kvserving_tuner.ladder.forecast import growth, more_sequences
from kvserving_tuner.ladder.rung import Candidate
from kvserving_tuner.ladder.situation import AUTO, Situation
from kvserving_tuner.regimes.loads import alternates, lately
from kvserving_tuner.remembered import failed

EIGHT_BITS: Final = ("fp8_e4m3", "int8")
"""The engine says which of them this hardware can store."""
MIXED: Final = ("k8v4",)
FOUR_BITS: Final = ("int4_hadamard", "int4", "nuq4")
"""The rotated one first: it spreads outliers, which cost plain 4 bits their answers."""
FEWER: Final = ("k2v4", "k4v2", "int3", "nuq3", "int2")
BLOCK: Final = 64
"""Block for which sizes are compared; the smallest in which every format has a layout is 32."""
HEAD: Final = 128
"""Head size for which sizes are compared; of others parameters weigh a few percent more or less."""
LEAST_RATIO: Final = 1.05
"""Tokens in the smaller format over those in the present one that are worth a change."""


def consider_eight_bits(situation: Situation) -> Candidate | str:
    """Keys and values in 8 bits."""
    return _consider(situation, EIGHT_BITS)


def consider_mixed(situation: Situation) -> Candidate | str:
    """Keys in 8 bits, values in 4."""
    return _consider(situation, MIXED)


def consider_four_bits(situation: Situation) -> Candidate | str:
    """Keys and values in 4 bits."""
    return _consider(situation, FOUR_BITS)


def consider_fewer_bits(situation: Situation) -> Candidate | str:
    """Keys or values in fewer than 4 bits."""
    return _consider(situation, FEWER)


def token_bits(dtype: str, model_dtype: object = None) -> float | None:
    """Bits of one stored element, parameters included; None for a format without a size."""
    name = str(model_dtype) if dtype == AUTO and model_dtype is not None else dtype
    size = record_bytes("bfloat16" if name == AUTO else name, BLOCK, HEAD)
    return None if size is None else 8 * size / (2 * BLOCK * HEAD)


def _consider(situation: Situation, formats: Sequence[str]) -> Candidate | str:
    binds, evidence = situation.binding()
    if not binds:
        return evidence
    if situation.tpot.missed and not situation.recomputed_share:
        return "tokens follow each other too slowly already, and more sequences make steps longer"
    here = situation.dtype
    if here is None:
        return "engines do not say in which format they store, or store in different ones"
    bits = token_bits(here, situation.started_with("dtype"))
    if bits is None:
        return f"the size of {here}, which is in effect, is not known"
    refusals: list[str] = []
    for name in formats:
        size = token_bits(name)
        refusal = (
            f"{name} has no size yet"
            if size is None
            else f"{name} holds no more than {here}"
            if bits / size < LEAST_RATIO
            else _refusal(situation, name)
        )
        if refusal or size is None:
            refusals.append(refusal)
            continue
        return _candidate(situation, here, name, bits / size, evidence)
    return "; ".join(refusals)


def _refusal(situation: Situation, name: str) -> str:
    """Why a format may not be tried here; empty where it may."""
    if name not in situation.settings.allowed_dtypes:
        return f"{name} is not among the allowed formats"
    loads, now = situation.state.loads, situation.now
    regimes = {loads.current}
    if alternates(loads, situation.settings.regimes, now):
        # What one of them cannot have would be taken back as soon as it returns.
        regimes |= {each.name for each in lately(loads, now)}
    tried = failed(situation.state.tried, Knob.KV_CACHE_DTYPE, name, regimes, now)
    if tried is not None:
        return f"{name} did not pass under {tried.regime or 'this load'}: {tried.message}"
    offers = [_offer(each.envelope) for each in situation.runtime]
    if all(name in values for values, _ in offers):
        return ""
    reasons = [unavailable[name] for _, unavailable in offers if name in unavailable]
    return f"{name}: {reasons[0]}" if reasons else ""


def _candidate(
    situation: Situation, here: str, name: str, ratio: float, evidence: str
) -> Candidate:
    offers = [_offer(each.envelope)[0] for each in situation.runtime]
    live = bool(offers) and all(name in values for values in offers)
    running, waiting = situation.running, situation.waiting
    room = ratio
    if running > 0:
        room = min(room, (running + waiting) / running)
    built = situation.started_with("max_num_seqs")
    if isinstance(built, int) and running > 0:
        room = min(room, built / running)
    forecast = more_sequences(
        room,
        growth(situation.state.samples, running),
        f"{ratio:.2f} times the tokens, {room:.2f} times the sequences",
        situation.recomputed_share,
    )
    return Candidate(
        knob=Knob.KV_CACHE_DTYPE,
        from_value=here,
        to_value=name,
        cost=CostClass.LIVE if live else CostClass.RESTART,
        reason=Reason.KV_BINDS,
        message=f"{evidence}: {name} holds {ratio:.2f} times the tokens of {here}",
        forecast=forecast,
    )


def _offer(envelope: Mapping[str, Any]) -> tuple[frozenset[str], Mapping[str, str]]:
    """Formats that an engine takes live, and those it does not take with the reason."""
    offer = envelope.get("kv_cache_dtype")
    if not isinstance(offer, Mapping):
        return frozenset(), {}
    values, unavailable = offer.get("values"), offer.get("unavailable")
    names = frozenset(map(str, values)) if isinstance(values, Iterable) else frozenset[str]()
    reasons = unavailable if isinstance(unavailable, Mapping) else {}
    return names, {str(name): str(why) for name, why in reasons.items()}
