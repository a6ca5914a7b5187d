"""`spec.rollout`: how pods are replaced when the rendered template changes."""

from typing import Annotated

from pydantic import Field

from kvserving_operator.api.base import ApiModel, Count
from kvserving_operator.api.rules import Rule


class RolloutSpec(ApiModel):
    """Replacement of pods."""

    rules = (
        Rule(
            cel="self.maxSurge > 0 || self.maxUnavailable > 0",
            holds=lambda spec: spec.max_surge > 0 or spec.max_unavailable > 0,
            message="maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
            field="maxUnavailable",
        ),
    )

    max_surge: Annotated[Count, Field(le=1000)] = 0
    """Pods above the wanted number during a rollout; each needs spare GPUs."""
    max_unavailable: Annotated[Count, Field(le=1000)] = 1
    """Pods below the wanted number during a rollout."""
    startup_timeout_seconds: Annotated[int, Field(ge=30, le=86_400)] = 1800
    """Time a new engine has to load the model and answer, in seconds."""
    drain_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """Time a leaving engine has to finish its requests, in seconds."""
