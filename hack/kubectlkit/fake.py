"""An API that answers from memory, and a way to run a command against it."""

import copy
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from kvserving_kubectl.api import Object
from kvserving_kubectl.context import Context
from kvserving_kubectl.errors import NotFound, PluginError
from kvserving_kubectl.parser import build_parser, command
from kvserving_kubectl.resources import Resource

NOW = 1_800_000_000.0
WIDTH = 250


class FakeApi:
    """Objects by resource, namespace and name; every patch is noted."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.texts: dict[str, str] = {}
        """What subresources answer, by `name/subresource`."""
        self.refused: dict[tuple[str, str], PluginError] = {}
        """Errors by verb and resource."""
        self.patches: list[tuple[str, str, Mapping[str, Any], bool]] = []
        self.after_patch: Any = None
        """Called with the object that was patched: what the operator does."""

    def add(self, resource: Resource, body: Mapping[str, Any]) -> None:
        """Store an object."""
        meta = body["metadata"]
        key = (resource.plural, meta.get("namespace", ""), meta["name"])
        self.objects[key] = copy.deepcopy(dict(body))

    def default_namespace(self) -> str:
        """Always the same."""
        return "demo"

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """One object."""
        self._refuse("get", resource)
        found = self.objects.get((resource.plural, namespace, name))
        if found is None:
            raise NotFound(resource.singular, name, namespace)
        return copy.deepcopy(found)

    def list(
        self, resource: Resource, namespace: str = "", query: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Objects with the labels of a selector."""
        self._refuse("list", resource)
        selector = (query or {}).get("labelSelector", "")
        return [
            copy.deepcopy(body)
            for (plural, its, _), body in self.objects.items()
            if plural == resource.plural and namespace in ("", its) and _has(body, selector)
        ]

    def text(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        query: Mapping[str, str] | None = None,
    ) -> str:
        """What was put there."""
        self._refuse("get", resource, subresource.split("/")[0])
        key = f"{name}/{subresource}" + ("/previous" if (query or {}).get("previous") else "")
        if key not in self.texts:
            raise NotFound(resource.singular, name, namespace)
        return self.texts[key]

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Merge-patch."""
        self._refuse("patch", resource, subresource)
        found = self.get(resource, namespace, name)
        self.patches.append((resource.plural, name, patch, dry_run))
        merged: Object = merge(found, patch)
        if not dry_run:
            self.objects[(resource.plural, namespace, name)] = merged
            if self.after_patch is not None:
                self.after_patch(merged)
        return copy.deepcopy(merged)

    def apply_dry_run(self, manifest: Mapping[str, Any], namespace: str) -> Object:
        """The manifest with the defaults of its schema."""
        from kvserving_kubectl.validation.check import schemas
        from kvserving_kubectl.validation.schema import defaulted

        filled: Object = defaulted(dict(manifest), schemas()[manifest["kind"]])
        return filled

    def server(self) -> str:
        """A version."""
        return "v1.34.0"

    def made(self) -> Sequence[Mapping[str, Any]]:
        """Patches that were no trial run."""
        return [patch for _, _, patch, dry_run in self.patches if not dry_run]

    def _refuse(self, verb: str, resource: Resource, subresource: str = "") -> None:
        name = f"{resource.plural}/{subresource}" if subresource else resource.plural
        if (verb, name) in self.refused:
            raise self.refused[(verb, name)]


def merge(value: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(value) if isinstance(value, Mapping) else {}
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), item)
    return merged


def _has(body: Mapping[str, Any], selector: str) -> bool:
    labels = body["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        name, equals, value = part.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True


class Ran:
    """A command that was run: what it printed, and what it was told."""

    def __init__(self, api: FakeApi, answers: Sequence[str] = ()) -> None:
        self.api = api
        self.answers = list(answers)
        self.slept: list[float] = []
        self.now = NOW
        self._out, self._err = io.StringIO(), io.StringIO()

    def __call__(self, *argv: str) -> str:
        """Run it, and give what it printed."""
        options = build_parser(argv).parse_args(argv)
        context = Context(
            options,
            self.api,
            Console(file=self._out, width=WIDTH),
            Console(file=self._err, width=WIDTH),
            ask=self._ask,
            clock=lambda: self.now,
            sleep=self._sleep,
        )
        command(options.command).run(context)
        return self.out

    @property
    def out(self) -> str:
        """What it answered."""
        return self._out.getvalue()

    @property
    def err(self) -> str:
        """What it noted besides."""
        return self._err.getvalue()

    def _ask(self, question: str) -> str:
        if not self.answers:
            raise EOFError
        return self.answers.pop(0)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
