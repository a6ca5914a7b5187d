"""Modules of packages that are not installed here."""

import sys
from types import ModuleType

import pytest


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> None:
    """Stand for a module, with the packages that it is in."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        package = ".".join(parts[:end])
        if package not in sys.modules:
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
    for key, value in contents.items():
        monkeypatch.setattr(sys.modules[name], key, value, raising=False)
