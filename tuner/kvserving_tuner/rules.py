"""How the ladder is climbed, what holds changes back, and how regimes of load are told apart."""

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

DAY_SECONDS: Final = 86_400.0


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Ability(StrEnum):
    """What whoever carries changes out can do about one knob."""

    CHANGE = "Change"
    """Set it on all engines, and set it back."""
    TRIAL = "Trial"
    """Try it on some engines, judge it, and report the verdict."""
    RECOMMEND = "Recommend"
    """Show the change to a person."""


class Strategy(StrEnum):
    """How the ladder decides whether a rung is due."""

    MODEL = "Model"
    """By the gain that is predicted from what was measured."""
    RULES = "Rules"
    """By thresholds alone: a rung is due once its precondition has held for long enough. For loads
    that no model fits; operators of autoscalers prefer simple triggers (llm-d#2497)."""


class Weekday(StrEnum):
    """Days of the week, in UTC."""

    MONDAY = "Mon"
    TUESDAY = "Tue"
    WEDNESDAY = "Wed"
    THURSDAY = "Thu"
    FRIDAY = "Fri"
    SATURDAY = "Sat"
    SUNDAY = "Sun"


_DAYS: Final = tuple(Weekday)
_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


class MaintenanceWindow(_Frozen):
    """A time at which changes may be made that restart engines or touch answers."""

    start: str
    """Time of day in UTC, HH:MM."""
    minutes: int = Field(ge=1, le=10_080)
    """How long it lasts."""
    days: tuple[Weekday, ...] = _DAYS
    """Days on which it begins."""

    @field_validator("start")
    @classmethod
    def _is_a_time(cls, start: str) -> str:
        if not _TIME.fullmatch(start):
            msg = f"start: expected HH:MM from 00:00 to 23:59, got {start!r}"
            raise ValueError(msg)
        return start

    def is_open(self, now: float) -> bool:
        """Whether `now`, in seconds since the epoch, lies in this window."""
        at = datetime.fromtimestamp(now, UTC)
        hour, minute = map(int, self.start.split(":"))
        # A window of a week that began up to a week ago may still be open.
        for ago in range(8):
            began = at.replace(hour=hour, minute=minute, second=0, microsecond=0) - timedelta(ago)
            begins_then = _DAYS[began.weekday()] in self.days
            if begins_then and began <= at < began + timedelta(minutes=self.minutes):
                return True
        return False


class LadderRules(_Frozen):
    """When a rung is due."""

    strategy: Strategy = Strategy.MODEL
    """Forecasts, which tell a change that is worth it from one that only could be made."""
    least_gain_live: float = Field(default=0.05, ge=0)
    """Gain that a live change must be likely to exceed (its forecast's low end). This and the next
    two are the thresholds of the tuning reference, C.5."""
    least_gain_restart: float = Field(default=0.08, ge=0)
    """The same for a change that restarts engines."""
    least_gain_quality: float = Field(default=0.15, ge=0)
    """The same for a change that touches answers."""
    windows: int = Field(default=3, ge=1)
    """Full windows in a row through which a rung must be due before it is taken (C.5: K = 3)."""
    step_up: float = Field(default=1.25, gt=1)
    """Largest step of a live cap upwards (C.5)."""
    step_down: float = Field(default=0.8, gt=0, lt=1)
    """Largest step of a live cap downwards outside of a storm (C.5)."""
    watermark_percents: tuple[int, ...] = (2, 5)
    """Values of the watermark, tried in this order (C.4; vllm#44594 measured 5 %)."""
    trial_seconds: float = Field(default=DAY_SECONDS, gt=0)
    """How long a trial that was asked for is waited for, before it is asked for again."""


class Guardrails(_Frozen):
    """What holds changes back, whatever the ladder says. Ending a storm is never held back."""

    cooldown_maximum_seconds: float = Field(default=DAY_SECONDS, gt=0)
    """The cool-down of a change doubles with each rollback in a row, up to this (C.5: 24 h)."""
    settle_seconds: float = Field(default=120, ge=0)
    """What engines do in this time after a change is not counted: caches are cold and the backlog
    drains (C.6: 60 to 120 s of warm-up)."""
    watch_windows: int = Field(default=5, ge=2)
    """Full windows before and after a change that are compared."""
    watch_timeout_seconds: float = Field(default=1800, gt=0)
    """Time after which a change that cannot be judged for want of data is taken back."""
    harm_share: float = Field(default=0.05, gt=0, lt=1)
    """Loss of goodput beyond which, and beyond its noise, a change is taken back (C.7)."""
    tabu_seconds: float = Field(default=7 * DAY_SECONDS, gt=0)
    """How long a change that was taken back is not tried again under the same load."""
    changes_per_day: int | None = Field(default=None, ge=0)
    """Calm changes in 24 hours, those of the cap among them; None: as many as are due."""
    switches_per_day: int = Field(default=4, ge=0)
    """Changes in 24 hours that empty the cache or restart engines (B.4: at most 4 a day)."""
    exploration_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the requests that may still miss their target today which trying changes may cost
    (C.5: 10 %)."""
    windows: tuple[MaintenanceWindow, ...] = ()
    """When engines may be restarted and answers touched; empty: at any time."""


class RegimeRules(_Frozen):
    """How loads are told apart."""

    tolerance: float = Field(default=0.35, gt=0)
    """Distance of two loads, as the natural logarithm of the ratio of a rate or a length, up to
    which they are one: 0.35 is a factor of 1.4. A quarter more is one step of a cap."""
    drift_delta: float = Field(default=0.05, ge=0)
    """Change of a logarithm that counts as none (Page-Hinkley's delta)."""
    drift_threshold: float = Field(default=0.8, gt=0)
    """Sum of deviations that is a change (Page-Hinkley's lambda): two windows of a doubled rate, or
    four of one and a half times the length; noise of a tenth needs years."""
    minimum_windows: int = Field(default=5, ge=2)
    """Full windows before a change of load can be seen."""
    gathered_windows: int = Field(default=3, ge=1)
    """Full windows whose mean says which load it is: at the start, and after a sign of change."""
    remembered: int = Field(default=16, ge=1)
    """Loads that are kept."""
    robust_per_hour: int = Field(default=1, ge=1)
    """With more changes of load than this in an hour, settings are those that suit all of them, and
    none is chased (C.5)."""
