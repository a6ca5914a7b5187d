"""The page on the plugin: its commands exist as they stand there, and none is missing."""

import argparse
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
    words = shlex.split(line, comments=True)
    options = build_parser(words).parse_args(words)
    assert options.command in COMMANDS


def test_every_command_is_shown_and_has_a_row() -> None:
    shown = {shlex.split(line)[0] for line in SHOWN.findall(PAGE)}
    assert set(COMMANDS) == shown
    table = next(part for part in PAGE.split("\n\n") if part.startswith("| command"))
    assert [] == [name for name in COMMANDS if f"`{name}`" not in table]


def test_every_option_has_help() -> None:
    for name in COMMANDS:
        parser = build_parser([name])
        (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        for action in commands.choices[name]._actions:
            assert action.help or action.choices, (name, action)


def test_commands_that_change_a_cluster_can_be_tried_and_agreed_to() -> None:
    for name in ("promote", "rollback", "pause", "resume"):
        words = [name, "chat", "--dry-run", "--yes"]
        options = build_parser(words).parse_args(words)
        assert (options.dry_run, options.yes) == (True, True)
