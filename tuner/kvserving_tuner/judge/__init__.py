"""Whether a change may stay: tests that stay valid under continuous looking, and their verdict."""

from kvserving_tuner.judge.blocks import block_means, block_seconds
from kvserving_tuner.judge.calibration import arms_differ, calibration
from kvserving_tuner.judge.comparison import Comparison, Finding, least_to_show
from kvserving_tuner.judge.criteria import (
    Criterion,
    floor,
    goodput_gain,
    goodput_loss,
    likelihood,
    loads_are_comparable,
    relative_rise,
    share_rise,
    shortfall,
    symmetric,
    target_missed,
    task,
)
from kvserving_tuner.judge.long_run import LongRun
from kvserving_tuner.judge.shares import Part, share_difference, share_missed
from kvserving_tuner.judge.verdict import (
    Cause,
    HardStop,
    Outcome,
    Rules,
    Split,
    Trial,
    Verdict,
    judge,
)

__all__ = [
    "Cause",
    "Comparison",
    "Criterion",
    "Finding",
    "HardStop",
    "LongRun",
    "Outcome",
    "Part",
    "Rules",
    "Split",
    "Trial",
    "Verdict",
    "arms_differ",
    "block_means",
    "block_seconds",
    "calibration",
    "floor",
    "goodput_gain",
    "goodput_loss",
    "judge",
    "least_to_show",
    "likelihood",
    "loads_are_comparable",
    "relative_rise",
    "share_difference",
    "share_missed",
    "share_rise",
    "shortfall",
    "symmetric",
    "target_missed",
    "task",
]
