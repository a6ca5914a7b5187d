"""What the KVServings of the made-up fleet are, and what happens to each in its hour."""

from dataclasses import dataclass, field
from typing import Any

from kvserving_operator.actions import Announce
from kvserving_operator.render.names import ServingRef

INT8, INT4 = "trial chat-5f0c1d2e, bfloat16 -> int8", "trial rag-1c77ab90, bfloat16 -> int4"
WHY = (
    "ServedLikelihoodShort: 4.81 % worse (95 % interval 3.02 to 6.60, n = 74), at most 2.00 % "
    "accepted"
)


@dataclass
class Course:
    """One KVServing and how its hour goes."""

    namespace: str
    name: str
    model: str
    load: float
    """Use of the KV cache around which it moves."""
    ttft: float
    tpot: float
    """In seconds, at the percentile of its targets."""
    slo: dict[str, int]
    conditions: list[dict[str, Any]]
    status: dict[str, Any] = field(default_factory=dict)
    mode: str = "Auto"
    said: dict[int, Announce] = field(default_factory=dict)
    """Events by the look that has them."""
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def ref(self) -> ServingRef:
        """Its reference."""
        return ServingRef(self.namespace, self.name, f"uid-{self.name}")


def condition(type: str, status: str, reason: str, message: str) -> dict[str, Any]:
    """A condition as the API has it."""
    return {
        "type": type, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2027-01-15T08:00:00Z", "observedGeneration": 3,
    }  # fmt: skip


def calm(engines: int = 2) -> list[dict[str, Any]]:
    """Conditions of a KVServing that nothing is wrong with."""
    return [
        condition("Ready", "True", "Serving", f"{engines} of {engines} engines answer completions"),
        condition("Progressing", "False", "UpToDate", "all engines run the present template"),
        condition("Degraded", "False", "AsExpected", "nothing is wrong"),
        condition("MetricsAvailable", "True", "MetricsFresh", "metrics are fresh"),
        condition("RolledBack", "False", "NotRolledBack", "no trial of generation 3 was undone"),
    ]  # fmt: skip


def courses() -> tuple[Course, ...]:
    """The fleet."""
    chat = Course(
        "demo", "chat", "SmolLM2-135M-Instruct", 0.78, 0.28, 0.027,
        {"ttftMilliseconds": 400, "tpotMilliseconds": 40}, calm(),
        spec={"rollbackPolicyRef": {"name": "careful"}},
        said={
            40: Announce("SettingChanged", "PreemptionStorm: 14 preemptions in 20 s; cap 24 -> 18"),
            150: Announce("Decided", "KVPressure/KVBinds: int8 doubles the room of the cache"),
            152: Announce("TrialStarted", f"{INT8}: begins"),
            190: Announce("TrialStep", f"{INT8}: step 0 (25 %): pods chat-7d4-x2 take the change"),
            280: Announce(
                "TrialStep",
                f"{INT8}: step 1 (50 %): pods chat-7d4-x2, chat-7d4-k9 take the change",
            ),
        },
    )  # fmt: skip
    rag = Course(
        "demo", "rag", "Qwen2.5-7B-Instruct", 0.52, 0.55, 0.022,
        {"ttftMilliseconds": 800}, [
            *calm(3)[:-1],
            condition("RolledBack", "True", "TrialRolledBack",
                      f"engines run bfloat16, not int4: {WHY}"),
        ],
        status={"verdicts": [{
            "trial": "rag-1c77ab90", "field": "KVCacheDType", "value": "int4",
            "verdict": "RolledBack",
            "reason": "QualityDrop", "at": "2027-01-15T08:31:10Z",
        }]},
        said={
            110: Announce("TrialStep", f"{INT4}: step 0 (25 %): pods rag-7d4-p1 take the change"),
            186: Announce(
                "TrialRolledBack", f"{INT4}: {WHY}; engines run bfloat16", warning=True
            ),
        },
    )  # fmt: skip
    docs = Course(
        "search", "docs", "Llama-3.1-8B-Instruct", 0.94, 0.72, 0.062,
        {"ttftMilliseconds": 500, "tpotMilliseconds": 50}, calm(4), mode="Recommend",
        status={"recommendation": {
            "id": "9a41", "at": "2027-01-15T08:40:00Z", "knob": "MaxActiveSeqs", "fromValue": "64",
            "toValue": "48", "costClass": "Live", "reason": "Storm",
            "message": "31 preemptions in 20 s at a KV use of 0.98",
        }},
        said={240: Announce("Recommended", "PreemptionStorm/Storm: MaxActiveSeqs 64 -> 48")},
    )  # fmt: skip
    code = Course(
        "search", "code", "StarCoder2-3B", 0.31, 0.12, 0.018, {"ttftMilliseconds": 300}, calm(1)
    )
    return chat, rag, docs, code
