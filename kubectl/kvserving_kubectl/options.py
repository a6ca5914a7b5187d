"""Options that several commands share, spelled as kubectl spells them."""

import argparse

from kvserving_kubectl.completing import complete_servings, complete_trials

FORMATS = ("table", "json", "yaml")


def add_connection(parser: argparse.ArgumentParser, *, defaults: bool) -> None:
    """Which cluster and namespace; without `defaults` an option that is not given sets nothing."""
    group = parser.add_argument_group("cluster")
    missing: str = argparse.SUPPRESS

    def add(*flags: str, help: str, default: str, metavar: str) -> None:
        group.add_argument(
            *flags, help=help, default=default if defaults else missing, metavar=metavar
        )

    add("-n", "--namespace", help="default: that of the context", default="", metavar="NAME")
    add("--context", help="context of the kubeconfig", default="", metavar="NAME")
    add("--kubeconfig", help="file that kubectl would read", default="", metavar="FILE")
    add("--as", help="user to impersonate", default="", metavar="USER")
    add("--request-timeout", help="longest time for one call", default="30s", metavar="DURATION")


def add_output(parser: argparse.ArgumentParser) -> None:
    """In which form an answer is given."""
    parser.add_argument(
        "-o", "--output", choices=FORMATS, default="table", help="form of the answer (table)"
    )


def add_serving(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The KVServing that a command is about."""
    argument = parser.add_argument(
        "name", nargs="?" if optional else None, help="name of a KVServing", metavar="NAME"
    )
    argument.completer = complete_servings  # type: ignore[attr-defined]


def add_all_namespaces(parser: argparse.ArgumentParser) -> None:
    """Whether to look into all namespaces."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="look into all of them")


def add_trial(parser: argparse.ArgumentParser) -> None:
    """One trial of the KVServing."""
    argument = parser.add_argument(
        "--trial", metavar="NAME", default="", help="KVTrial; default: the one under way"
    )
    argument.completer = complete_trials  # type: ignore[attr-defined]


def add_change(parser: argparse.ArgumentParser) -> None:
    """How a change is made: asked about first, unless it is agreed to or not made at all."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--dry-run", action="store_true",
        help="show what would be changed, and have the server check it; nothing is changed",
    )  # fmt: skip
