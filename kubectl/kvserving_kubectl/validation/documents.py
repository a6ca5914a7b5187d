"""Manifests out of YAML and JSON files, with the line of each of their fields."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kvserving_kubectl.errors import UsageError

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
MOST_FIELDS = 100_000
Place = tuple[str | int, ...]
"""Way to a field: names and indices."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a field of a manifest, and where it stands."""

    file: str
    line: int
    object: str
    """Kind and name."""
    field: str
    message: str

    def __str__(self) -> str:
        about = ": ".join(part for part in (self.object, self.field, self.message) if part)
        return f"{self.file}:{self.line}: {about}"


@dataclass(frozen=True)
class Document:
    """One manifest."""

    file: str
    body: Mapping[str, Any]
    lines: Mapping[Place, int] = field(repr=False)
    repeated: tuple[Place, ...] = ()
    """Keys that stand twice in one mapping."""

    @property
    def title(self) -> str:
        """Kind and name, as kubectl writes them."""
        metadata = self.body.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, Mapping) else ""
        return f"{self.body.get('kind', '?')}/{name or '?'}"

    def line(self, place: Place) -> int:
        """Line of a field; of what it should be in where it is missing."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]

    def fault(self, place: Place, message: str) -> Fault:
        """A fault of this manifest."""
        return Fault(self.file, self.line(place), self.title, dotted(place), message)


def read(files: Iterable[str], *, recursive: bool = False) -> Iterator[Document | Fault]:
    """Manifests of files, folders and the standard input; a fault for what is no YAML.

    Raises UsageError where a file cannot be read, or a folder has none.
    """
    for name in files:
        for shown, text in _texts(name, recursive):
            yield from parse(shown, text)


def parse(file: str, text: str) -> Iterator[Document | Fault]:
    """Manifests of one text, those of a List among them."""
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:
        yield Fault(file, 1, "", "", f"expected YAML: {error}".replace("\n", " "))
        return
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                break
            lines: dict[Place, int] = {}
            repeated: list[Place] = []
            _locate(node, (), node.start_mark.line + 1, lines, repeated)
            body = loader.construct_document(node)
            if body is None:
                continue
            if not isinstance(body, Mapping):
                kind = type(body).__name__
                yield Fault(file, lines[()], "", "", f"expected a manifest, a mapping, got {kind}")
                continue
            yield from _unpacked(Document(file, body, lines, tuple(repeated)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(part for part in (error.context, error.problem) if part)
        yield Fault(file, line, "", "", f"expected YAML: {problem}")
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        yield Fault(file, 1, "", "", f"expected YAML: {error}".replace("\n", " "))
    finally:
        loader.dispose()


def dotted(place: Place) -> str:
    """A place as users write it."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _texts(name: str, recursive: bool) -> Iterator[tuple[str, str]]:
    if name == STDIN:
        yield "stdin", sys.stdin.read()
        return
    path = Path(name)
    files = [path]
    if path.is_dir():
        within = path.rglob("*") if recursive else path.iterdir()
        files = sorted(each for each in within if each.suffix in SUFFIXES and each.is_file())
        if not files:
            hint = "" if recursive else "; -R looks into the folders in it"
            raise UsageError(f"{name}: has no file that ends with {', '.join(SUFFIXES)}{hint}")
    for each in files:
        try:
            yield str(each), each.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise UsageError(f"{each}: cannot be read: {why}") from None


def _unpacked(document: Document) -> Iterator[Document]:
    items = document.body.get("items")
    if document.body.get("kind") != "List" or not isinstance(items, list):
        yield document
        return
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            continue
        head: Place = ("items", index)
        lines = {place[2:]: line for place, line in document.lines.items() if place[:2] == head}
        repeated = tuple(place[2:] for place in document.repeated if place[:2] == head)
        yield Document(document.file, item, lines, repeated)


def _locate(
    node: yaml.Node, place: Place, line: int, lines: dict[Place, int], repeated: list[Place]
) -> None:
    """Note the line of each field: that of its key."""
    lines[place] = line
    if len(lines) > MOST_FIELDS:
        # Aliases of aliases can spell a whole disk in a few lines.
        raise ValueError(f"at most {MOST_FIELDS} fields in one document, aliases counted")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            below = (*place, key.value)
            if below in lines:
                repeated.append(below)
            _locate(value, below, key.start_mark.line + 1, lines, repeated)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _locate(item, (*place, index), item.start_mark.line + 1, lines, repeated)
