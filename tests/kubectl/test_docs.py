"""The page on the plugin: its commands exist as they stand there, and none is missing."""

import re
import shlex
from pathlib import Path

import pytest

from kvserving_kubectl.parser import COMMANDS, build_parser

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/kubectl.md").read_text()
SHOWN = re.compile(r"^\$ (?:.*[|(] ?)?kubectl kvserving (.*?)\)?$", re.MULTILINE)


@pytest.mark.parametrize("line", sorted(set(SHOWN.findall(PAGE))))
def test_what_the_page_shows_can_be_typed(line: str) -> None:
    options = build_parser().parse_args(shlex.split(line, comments=True))
    assert options.command in COMMANDS


def test_every_command_is_shown_and_has_a_row() -> None:
    shown = {shlex.split(line)[0] for line in SHOWN.findall(PAGE)}
    assert set(COMMANDS) == shown
    table = next(part for part in PAGE.split("\n\n") if part.startswith("| command"))
    assert [] == [name for name in COMMANDS if f"`{name}`" not in table]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_change_is_named(name: str) -> None:
    parser = build_parser()
    options = parser.parse_args(
        [name, *(["bash"] if name == "completion" else ["a"] if name != "trials" else [])]
    )
    if hasattr(options, "dry_run"):
        assert hasattr(options, "yes")
        assert "--dry-run" in PAGE
