"""`spec.monitoring`: where the numbers behind decisions come from."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from kvserving_operator.api.base import ApiModel, matches
from kvserving_operator.api.rules import Checked, Rule

_URL_PATTERN = (
    r"^https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$"
)


class MonitoringSource(StrEnum):
    """Who collects the engines' metrics."""

    DIRECT = "Direct"
    PROMETHEUS = "Prometheus"


class PrometheusSpec(ApiModel):
    """A Prometheus server that scrapes the engines."""

    url: Annotated[
        str,
        StringConstraints(min_length=1, max_length=512),
        Checked(
            Rule(
                cel=f"self.matches(r'{_URL_PATTERN}')",
                holds=lambda url: matches(_URL_PATTERN, url),
                message='expected http(s)://host[:port][/path] without credentials, got "{self}"',
            )
        ),
    ]
    """Base address of the server's HTTP API."""
    timeout_seconds: Annotated[int, Field(ge=1, le=60)] = 5
    """Time-out of one query, in seconds."""


class MonitoringSpec(ApiModel):
    """Source of observations."""

    rules = (
        Rule(
            cel="self.source == 'Prometheus' ? has(self.prometheus) : !has(self.prometheus)",
            holds=lambda spec: (
                (spec.source is MonitoringSource.PROMETHEUS) == (spec.prometheus is not None)
            ),
            message="is required by source Prometheus and used by no other,"
            " source is {self.source}",
            field="prometheus",
        ),
    )

    source: MonitoringSource = MonitoringSource.DIRECT
    """Direct scrapes each engine's own metrics, Prometheus queries a server."""
    scrape_interval_seconds: Annotated[int, Field(ge=1, le=6)] = 5
    """Pause between two observations, in seconds; at most 6, since a preemption storm must show in
    three of them within 20 seconds."""
    prometheus: PrometheusSpec | None = None
    """The server behind source Prometheus."""
