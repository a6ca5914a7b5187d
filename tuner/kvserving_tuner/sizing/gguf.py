"""The header of a GGUF file: what a model is, read from the first bytes alone.

The `gguf` package reads whole files only, and keeps a vocabulary of 100,000 words as arrays. Here
a part of a file that has its header is enough, and what is not asked for is passed over
(docs/decisions/0030). Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from kvserving_tuner.errors import SizingError

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
LONGEST_TEXT: Final = 1 << 16
"""Bytes of a key or of a value that is kept; chat templates are shorter, licences may be longer."""
MOST_ENTRIES: Final = 1 << 16
LONGEST_ARRAY: Final = 4096
"""Elements of an array that is kept: one number per layer is, a vocabulary is not."""
STRING, ARRAY = 8, 9
NUMBERS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""How numbers are packed, by the format's number of their type."""


@dataclass(frozen=True)
class Header:
    """Metadata of a file by key. Long arrays and texts are left out."""

    metadata: Mapping[str, Any]
    tensors: int
    size_bytes: int
    """Of the file as it is here."""
    end_bytes: int
    """Where the weights of a whole file end, at the least: its last tensor begins there."""

    @property
    def is_whole(self) -> bool:
        """Whether the file has its tensors, too."""
        return self.size_bytes > self.end_bytes


def read_header(path: Path) -> Header:
    """Read a header; SizingError for a file that is none, or that ends within its header."""
    try:
        with path.open("rb") as file:
            return _Reader(file, path).header()
    except OSError as error:
        raise SizingError("config", "a file that can be read", f"{path}: {error.strerror}") from (
            error
        )


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._size = path.stat().st_size

    def header(self) -> Header:
        if self._file.read(4) != MAGIC:
            raise self._wrong("a GGUF file", "no GGUF mark at its beginning")
        version = self._number(4)
        if version not in VERSIONS:
            known = " or ".join(map(str, VERSIONS))
            raise self._wrong(f"GGUF of version {known} in little endian", f"version {version}")
        tensors, entries = self._number(10), self._number(10)
        if entries > MOST_ENTRIES:
            raise self._wrong(f"at most {MOST_ENTRIES} entries", str(entries))
        kept = {}
        for _ in range(entries):
            key = self._text()
            value = self._value(self._number(4))
            if key is not None and value is not None:
                kept[key] = value
        return Header(kept, tensors, self._size, self._end(tensors, kept))

    def _end(self, tensors: int, metadata: Mapping[str, Any]) -> int:
        """Where the last tensor begins, the file's size where their table is cut off."""
        last = 0
        try:
            for _ in range(tensors):
                self._text()
                dimensions = self._number(4)
                self._skip(8 * dimensions + 4)
                last = max(last, self._number(10))
        except SizingError:
            return self._size
        alignment = metadata.get("general.alignment", 32)
        step = alignment if isinstance(alignment, int) and alignment > 0 else 32
        return -(-self._file.tell() // step) * step + last

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._text()
        if kind != ARRAY:
            return self._number(kind)
        kind, count = self._number(4), self._number(10)
        if kind == ARRAY:
            raise self._wrong("arrays of numbers or texts", "an array of arrays")
        if kind == STRING:
            for _ in range(count):
                self._skip(self._number(10))
            return None
        size = struct.calcsize(f"<{self._packing(kind)}")
        if count > LONGEST_ARRAY:
            self._skip(count * size)
            return None
        return list(struct.unpack(f"<{count}{self._packing(kind)}", self._bytes(count * size)))

    def _text(self) -> str | None:
        """A text; None for one that is too long to be kept."""
        length = self._number(10)
        if length > LONGEST_TEXT:
            self._skip(length)
            return None
        return self._bytes(length).decode(errors="replace")

    def _number(self, kind: int) -> Any:
        packing = f"<{self._packing(kind)}"
        return struct.unpack(packing, self._bytes(struct.calcsize(packing)))[0]

    def _packing(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise self._wrong("a known type of value", str(kind))
        return NUMBERS[kind]

    def _bytes(self, count: int) -> bytes:
        read = self._file.read(count)
        if len(read) < count:
            raise self._wrong("a whole header", "a file that ends within it")
        return read

    def _skip(self, count: int) -> None:
        # Beyond its end a file may be sought in without an error.
        if self._file.tell() + count > self._size:
            raise self._wrong("a whole header", "a file that ends within it")
        self._file.seek(count, 1)

    def _wrong(self, expected: str, got: str) -> SizingError:
        return SizingError("config", expected, f"{self._path}: {got}")
