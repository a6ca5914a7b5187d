"""Changes to a cluster: shown first, checked by the server, agreed to, and then made."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvserving_kubectl.context import Context
from kvserving_kubectl.errors import PluginError, UsageError
from kvserving_kubectl.output import say
from kvserving_kubectl.resources import Resource

AGREED = ("y", "yes")


@dataclass(frozen=True)
class Change:
    """One patch of one object, and what it means in words."""

    resource: Resource
    namespace: str
    name: str
    patch: Mapping[str, Any]
    words: str
    subresource: str = ""
    wait: Callable[[], bool] | None = None
    """What has to be true before the next change is made."""
    waits_for: str = ""

    @property
    def target(self) -> str:
        """The object as kubectl names it."""
        part = f" ({self.subresource})" if self.subresource else ""
        return f"{self.resource.singular} {self.namespace}/{self.name}{part}"


def carry_out(
    context: Context, changes: Sequence[Change], effect: str, timeout_seconds: float = 60.0
) -> bool:
    """Show changes and what they do to users' traffic, ask, and make them; False where nobody did.

    Every change is checked by the server before the first is made, so that none is made where a
    permission is missing for another.
    """
    options = context.options
    for change in changes:
        say(context.out, f"{change.target}: {change.words}")
        say(context.out, f"  patch: {json.dumps(change.patch)}")
    say(context.out, effect)
    for change in changes:
        _patch(context, change, dry_run=True)
    if options.dry_run:
        say(context.out, "Dry run: the server accepts this; nothing was changed.")
        return False
    if not options.yes and not _agreed(context):
        say(context.out, "Nothing was changed.")
        return False
    for change in changes:
        _patch(context, change, dry_run=False)
        _wait(context, change, timeout_seconds)
    return True


def _patch(context: Context, change: Change, *, dry_run: bool) -> None:
    context.api.patch(
        change.resource, change.namespace, change.name, change.patch,
        subresource=change.subresource, dry_run=dry_run,
    )  # fmt: skip


def _agreed(context: Context) -> bool:
    try:
        return context.ask("Go on? [y/N] ").strip().lower() in AGREED
    except EOFError:
        raise UsageError("there is nobody to ask: pass --yes, or --dry-run to see it") from None


def _wait(context: Context, change: Change, timeout_seconds: float) -> None:
    if change.wait is None:
        return
    until = context.clock() + timeout_seconds
    while not change.wait():
        if context.clock() >= until:
            raise PluginError(
                f"{change.target}: {change.waits_for}: not within {timeout_seconds:.0f} s; is the "
                "operator running? What follows was not done"
            )
        context.sleep(1.0)
