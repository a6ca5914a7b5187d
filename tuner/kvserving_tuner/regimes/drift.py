"""When a number has changed for good: the Page-Hinkley test, both ways.

Deviations from the running mean are summed up, less what counts as no change; a sum that has moved
far from its extreme is a change. E. S. Page, Continuous inspection schemes, Biometrika 41, 1954;
the sums are those of `river.drift.PageHinkley` without forgetting, which the tests compare with.
"""

from kvserving_tuner.remembered import Drift
from kvserving_tuner.rules import RegimeRules


def update(drift: Drift, value: float, rules: RegimeRules) -> tuple[Drift, bool]:
    """The test after one more value, and whether it has found a change."""
    count = drift.count + 1
    mean = drift.mean + (value - drift.mean) / count
    up = drift.up + value - mean - rules.drift_delta
    down = drift.down + value - mean + rules.drift_delta
    least = up if drift.up_least is None else min(up, drift.up_least)
    most = down if drift.down_most is None else max(down, drift.down_most)
    after = Drift(count=count, mean=mean, up=up, up_least=least, down=down, down_most=most)
    moved = max(up - least, most - down)
    return after, count >= rules.minimum_windows and moved > rules.drift_threshold
