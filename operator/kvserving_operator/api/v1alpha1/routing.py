"""`spec.routing`: the gateway through which users come in."""

from typing import Annotated

from pydantic import Field, StringConstraints

from kvserving_operator.api.base import ApiModel, AsSet, ObjectName, Unique

HeaderName = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*$")
]
Hostname = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=253,
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]
LabelName = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]


class GatewayReference(ApiModel):
    """A Gateway of the Gateway API."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: LabelName | None = None
    """Namespace of the Gateway, whose listener must allow routes from here; unset for the
    KVServing's own."""
    section_name: ObjectName | None = None
    """Listener of the Gateway; unset for all that accept the route."""


class RoutingSpec(ApiModel):
    """The way in through a gateway, by which trials give a share of traffic to their candidates."""

    gateway_ref: GatewayReference
    """Gateway that the operator's HTTPRoute is attached to; it leads to the paths under /v1."""
    session_header: HeaderName | None = None
    """Request header that names a user's session, which then stays on its side of a trial; only
    Envoy Gateway can do that, with other controllers status says so."""
    hostnames: Annotated[
        tuple[Hostname, ...], Field(max_length=16, json_schema_extra={"default": []}), AsSet, Unique
    ] = ()
    """Host names that the route answers to; none for all. Without them two KVServings cannot share
    a listener."""
