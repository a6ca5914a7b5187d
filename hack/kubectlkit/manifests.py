"""Manifests with edits at random, the same each time: what people and tools get wrong."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    0, 1, -1, 7, 100, 101, 70_000, 2**31, 2**63, True, False, "", "x", "Off", "auto", "int8", "-1",
    "1Mi", "512Mi", "1e3", "a" * 300, "--flag", "hf://a/b", [], ["x"], [1, 1], [50, 10], {},
    {"x": 1}, "None", "StreamingLLM",
)  # fmt: skip
NAMES = ("maxNumSeqs", "dtyp", "x", "windowTokens", "revision", "minimum", "blockSize")


def mutated(manifest: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """So many manifests, each with one or two edits of its spec."""
    chance = random.Random(json.dumps(manifest, sort_keys=True))
    for _ in range(count):
        edited = copy.deepcopy(manifest)
        for _ in range(chance.choice((1, 1, 2))):
            _edit(edited["spec"], chance)
        yield edited


def _edit(node: Any, chance: random.Random) -> None:
    """Replace, remove or add something somewhere below a mapping or a list."""
    while True:
        entries = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        below = [child for _, child in entries if isinstance(child, dict | list) and child]
        if not below or chance.random() < 0.3:
            break
        node = chance.choice(below)
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    action = chance.choice(("replace", "replace", "remove", "add"))
    if action == "replace" and keys:
        node[chance.choice(keys)] = copy.deepcopy(chance.choice(VALUES))
    elif action == "remove" and keys:
        del node[chance.choice(keys)]
    elif isinstance(node, dict):
        node[chance.choice(NAMES)] = copy.deepcopy(chance.choice(VALUES))
    else:
        node.append(copy.deepcopy(chance.choice(VALUES)))
