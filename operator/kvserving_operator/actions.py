"""What a reconciliation may ask for; `executor.py` carries it out, in order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvserving_operator.kinds import Kind


@dataclass(frozen=True)
class CreateOnce:
    """Create a manifest unless an object of its name exists."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class Delete:
    """Delete one object; only the one with this uid."""

    kind: Kind
    name: str
    uid: str


@dataclass(frozen=True)
class Announce:
    """Post an Event on the KVServing."""

    reason: str
    message: str
    warning: bool = False


Action = CreateOnce | Delete | Announce
