"""Every error this package raises on purpose, so that a caller can catch the tree."""

import json
from typing import Final

SHOWN_CHARACTERS: Final = 80
"""Most characters of a wrong value that an error repeats."""


def shown(value: object) -> str:
    """A value as an error says that it came: JSON, cut to a readable length."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


class KVServingError(Exception):
    """Base of the package's errors; its text is meant for the person who runs the engine."""


class UnsupportedEngineError(KVServingError):
    """The installed vLLM, or the way it was started, is one that the plugin has no adapter for."""


class UnsupportedKVDTypeError(KVServingError):
    """The engine was started with a KV dtype that this machine or engine cannot store rightly."""


class LayoutError(KVServingError):
    """A KV format cannot be laid out with the given block size or head size."""


class OperationError(KVServingError):
    """Tensors handed to an operation on the KV cache do not fit its page layout or each other."""


class NoImplementationError(KVServingError):
    """No implementation of the KV operations can run with this device and format."""


class SwitchError(KVServingError):
    """Another KV format could not be put in force; the one from before is."""


class WorkerError(KVServingError):
    """Something failed in a worker, or in several; all of them can be asked again."""


class EngineEndsError(KVServingError):
    """The engine can no longer serve and has been told to end; nothing is said of its settings."""


class ProbeRefusedError(KVServingError):
    """A probe cannot run now, or not on this engine at all; users' requests were not touched."""


class RuntimeUnavailableError(KVServingError):
    """The engine core cannot be asked at the moment, or at all in this deployment."""


class InvalidFieldError(KVServingError):
    """A document has a field with a wrong name or value."""

    def __init__(self, field: str, expected: str, got: str) -> None:
        super().__init__(f"{field}: expected {expected}, got {got}")
        self.field = field
        self.expected = expected
        self.got = got

    def to_json(self) -> dict[str, str]:
        """As the runtime API answers it."""
        return {
            "field": self.field,
            "expected": self.expected,
            "got": self.got,
            "message": str(self),
        }


class InvalidChangeError(InvalidFieldError):
    """A requested change names a wrong field or value; nothing was changed."""


class InvalidProbeError(InvalidFieldError):
    """A probe names a wrong field or value; nothing was computed."""


class InvalidSettingError(InvalidFieldError):
    """A setting of the plugin is wrong; the engine does not start with it."""
