"""Spans whose identities and times are given: a decision and its trial are told in parts, later."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

EXPORT_SECONDS: Final = 5.0
"""Limit of one call to the collector, on a thread of its own: looks never wait for it."""

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Identity:
    """A trace and a span of it: the same after a restart, so that parts told later belong there."""

    trace: int
    span: int

    @classmethod
    def of(cls, *parts: str) -> "Identity":
        """Identity that follows from names."""
        digest = hashlib.sha256("\0".join(parts).encode()).digest()
        return cls(int.from_bytes(digest[:16]), int.from_bytes(digest[16:24]))

    @property
    def context(self) -> SpanContext:
        """As the parent of another span."""
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(self.trace, self.span, is_remote=True, trace_flags=flags)


@dataclass(frozen=True, slots=True)
class Event:
    """Something at one moment of a span."""

    name: str
    attributes: Attributes = field(default_factory=dict)


class GivenIds(RandomIdGenerator):
    """Random identities, but for a span whose identity is given."""

    def __init__(self) -> None:
        self.given: Identity | None = None

    def generate_trace_id(self) -> int:
        """Identity of a new trace."""
        return super().generate_trace_id() if self.given is None else self.given.trace

    def generate_span_id(self) -> int:
        """Identity of a new span."""
        return super().generate_span_id() if self.given is None else self.given.span


class Emitter:
    """Hands finished spans to a processor. Every one is sampled: there are a few in an hour."""

    def __init__(self, processor: SpanProcessor, instance: str = "") -> None:
        self._ids = GivenIds()
        resource = Resource.create(
            {
                "service.name": "kvserving-operator",
                "service.version": version("kvserving"),
                "service.instance.id": instance,
            }
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=resource,
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("kvserving_operator")

    def emit(
        self,
        name: str,
        start: float,
        end: float,
        attributes: Attributes,
        *,
        parent: Identity | None = None,
        identity: Identity | None = None,
        events: tuple[Event, ...] = (),
        failed: bool = False,
    ) -> None:
        """Tell of a span that has ended; times in seconds since the epoch."""
        context = Context()
        if parent is not None:
            context = set_span_in_context(NonRecordingSpan(parent.context), context)
        self._ids.given = identity
        try:
            span = self._tracer.start_span(
                name, context, attributes=attributes, start_time=_nanoseconds(start)
            )
        finally:
            self._ids.given = None
        for event in events:
            span.add_event(event.name, event.attributes, _nanoseconds(end))
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        # A clock that was put back in between makes no span that ends before it began.
        span.end(_nanoseconds(max(start, end)))

    def shutdown(self) -> None:
        """Send what is left, which may take as long as the limit of a call, and end."""
        self._provider.shutdown()


def to_collector(endpoint: str, instance: str) -> Emitter:
    """Emitter that sends spans by OTLP over HTTP, with headers of OTEL_EXPORTER_OTLP_HEADERS."""
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
    return Emitter(BatchSpanProcessor(exporter), instance)


def _nanoseconds(epoch_seconds: float) -> int:
    return int(epoch_seconds * 1e9)
