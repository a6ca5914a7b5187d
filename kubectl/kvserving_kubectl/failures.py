"""From what kubectl says of a call that failed to an error that a user can act on; pure."""

import re
from dataclasses import dataclass

from kvserving_kubectl.errors import (
    Forbidden,
    NoConnection,
    NotFound,
    NotInstalled,
    PluginError,
    Refused,
    Unauthorized,
)
from kvserving_kubectl.resources import Resource
from kvserving_operator.kinds import API_GROUP

_FROM_SERVER = re.compile(r"Error from server(?: \((?P<reason>\w+)\))?: (?P<message>.*)", re.DOTALL)
_DENIED = re.compile(
    r'cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_UNKNOWN_KIND = (
    "could not find the requested resource",
    "doesn't have a resource type",
    "no matches for kind",
)
_CONNECTION = (
    "connect", "dial ", "timeout", "timed out", "no such host", "lookup ", "tls", "x509", "eof",
    "net/http", "no configuration", "does not exist", "kubeconfig", "config file",
    "getting credentials", "unreachable", "proxy", "no such file",
)  # fmt: skip
"""Words of errors on the way to a server; all other errors are about what was asked."""
_UNAUTHORIZED = ("must be logged in", "unauthorized", "provide credentials")


READ_CONFIG = "view"
"""Verb of a look into the kubeconfig, which is no call to a server."""


@dataclass(frozen=True)
class Call:
    """One call: its verb as roles spell it, and what it was about."""

    verb: str
    resource: Resource | None
    namespace: str
    name: str
    subresource: str = ""

    @property
    def target(self) -> str:
        """Resource as `kubectl auth can-i` takes it."""
        if self.resource is None:
            return "the resource"
        name = self.resource.full_name
        return f"{name}/{self.subresource}" if self.subresource else name


def failure(call: Call, stderr: str, context: str) -> PluginError:
    """The error that kubectl's last words stand for."""
    told = " ".join(line for line in stderr.splitlines() if not line.startswith("Warning:")).strip()
    where = f"context {context}" if context else "the current context"
    if call.verb == READ_CONFIG:
        return NoConnection(f"the kubeconfig leads to no cluster: {told.removeprefix('error: ')}")
    found = _FROM_SERVER.search(told)
    reason, message = (found["reason"] or "", found["message"]) if found else ("", told)
    if reason == "Forbidden" or _DENIED.search(told):
        return _forbidden(call, message)
    if any(words in message for words in _UNKNOWN_KIND):
        return _unknown_kind(call, where, message)
    if reason == "NotFound":
        if call.resource is None or not call.name:
            return Refused(message)
        return NotFound(call.resource.singular, call.name, call.namespace)
    lowered = told.lower()
    if reason == "Unauthorized" or any(words in lowered for words in _UNAUTHORIZED):
        return Unauthorized(f"the API server of {where} does not accept these credentials: {told}")
    if found:
        return Refused(f"{call.verb} {call.target} {call.name}: {message}".replace("  ", " "))
    if told and not any(words in lowered for words in _CONNECTION):
        return Refused(told.removeprefix("error: "))
    return NoConnection(
        f"no connection to the cluster of {where}: {told or 'kubectl said nothing'}"
    )


def _forbidden(call: Call, message: str) -> Forbidden:
    """With what the server itself says was missing, where it says it."""
    denied = _DENIED.search(message)
    if denied is None:
        return Forbidden(call.verb, call.target, call.namespace, message)
    plural, _, subresource = denied["resource"].partition("/")
    full = f"{plural}.{denied['group']}" if denied["group"] else plural
    full += f"/{subresource}" if subresource else ""
    return Forbidden(denied["verb"], full, denied["namespace"] or "")


def _unknown_kind(call: Call, where: str, message: str) -> PluginError:
    if call.resource is not None and call.resource.group != API_GROUP:
        return NotInstalled(f"the cluster of {where} has no {call.resource.full_name}")
    name = call.resource.full_name if call.resource else "kind of the manifest"
    return NotInstalled(
        f"the cluster of {where} knows no {name}: the operator's chart is not installed there, or "
        f"without its CRDs ({message})"
    )
