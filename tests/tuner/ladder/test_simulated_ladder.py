"""The whole ladder on simulated engines: what binds is relieved, and nothing else is touched."""

from kvserving_tuner.decision import Knob
from kvserving_tuner.rules import Ability
from kvserving_tuner.settings import Mode, TuningSettings
from tunerkit.simulated import engine, requests, run

ABLE = TuningSettings(
    mode=Mode.AUTO,
    abilities={
        **dict.fromkeys(Knob, Ability.RECOMMEND),
        Knob.KV_CACHE_DTYPE: Ability.CHANGE,
        Knob.MAX_SCHEDULED_TOKENS: Ability.CHANGE,
    },
    allowed_dtypes=("fp8_e4m3", "k8v4", "int4_hadamard"),
)
HOUR = 3600.0


def test_a_cache_that_binds_ends_with_fewer_bits_and_more_goodput() -> None:
    load = requests(rate=1.2, seconds=3 * HOUR)
    tuned, left = engine(load), engine(load)
    found = run(tuned, ABLE).go(2 * HOUR)
    run(left, TuningSettings(mode=Mode.OFF)).go(2 * HOUR)
    for d in found.changes():
        print(d.at - 1e6, d.change, d.reason, d.message, d.case)
    print(found.decisions[-1])
    print(tuned.counters, left.counters)
    assert tuned.dtype != "bfloat16"
