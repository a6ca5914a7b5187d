"""What every command is given: its options, the cluster, and where to print."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from rich.console import Console

from kvserving_kubectl.api import Api


@dataclass
class Context:
    """One call of the plugin."""

    options: argparse.Namespace
    api: Api
    out: Console
    err: Console
    ask: Callable[[str], str] = input
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    @cached_property
    def namespace(self) -> str:
        """The namespace that was asked for, else the kubeconfig's; empty for all of them."""
        if getattr(self.options, "all_namespaces", False):
            return ""
        return self.options.namespace or self.api.default_namespace()

    @property
    def now(self) -> datetime:
        """The present, in UTC."""
        return datetime.fromtimestamp(self.clock(), UTC)

    def note(self, text: str) -> None:
        """Tell people something that is no part of the answer."""
        self.err.print(text, markup=False, highlight=False, soft_wrap=True)
