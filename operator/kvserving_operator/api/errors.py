"""Errors of the custom resource models."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvserving_operator.api.plain import plain


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of a resource: the field's path as a user writes it, and what is wrong with it."""

    path: str
    message: str

    def __str__(self) -> str:
        return plain(f"{self.path}: {self.message}" if self.path else self.message)


class ApiError(Exception):
    """Anything that is wrong with a custom resource or with the generated files."""


class SpecError(ApiError):
    """A resource that does not follow its schema; lists every fault with its field path."""

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(str(error) for error in self.errors))


class DriftError(ApiError):
    """A generated file differs from what the models say now."""
