"""What a check found, and the one line that says it."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

EXIT_OK: Final = 0
EXIT_REFUSED: Final = 2
EXIT_BROKEN: Final = 3


class Reason(StrEnum):
    """Why an engine would not start with these arguments."""

    UNKNOWN_FLAG = "UnknownFlag"
    INVALID_FLAG = "InvalidFlag"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_INCOMPLETE = "ModelIncomplete"
    MODEL_CONFIG_UNREADABLE = "ModelConfigUnreadable"
    ARCHITECTURE_UNSUPPORTED = "ArchitectureUnsupported"
    KV_DTYPE_UNSUPPORTED = "KVDTypeUnsupported"
    MODEL_LENGTH_TOO_LONG = "ModelLengthTooLong"
    BATCHED_TOKENS_TOO_FEW = "BatchedTokensTooFew"
    BLOCK_SIZE_UNSUPPORTED = "BlockSizeUnsupported"
    KV_MEMORY_TOO_SMALL = "KVMemoryTooSmall"
    EVICTION_UNSUPPORTED = "EvictionUnsupported"
    PARALLELISM_UNSUPPORTED = "ParallelismUnsupported"
    QUANTIZATION_UNSUPPORTED = "QuantizationUnsupported"
    ACCELERATOR_MISMATCH = "AcceleratorMismatch"
    ENVIRONMENT_INVALID = "EnvironmentInvalid"
    ENGINE_VERSION_UNSUPPORTED = "EngineVersionUnsupported"
    ENGINE_REFUSED = "EngineRefused"


@dataclass(frozen=True)
class Finding:
    """Something that speaks against a start.

    `field` is the flag, the variable, the setting of the plugin, or `model`, `accelerator`,
    `engine`.
    """

    field: str
    reason: Reason
    message: str

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps({"ok": False, **asdict(self)}, ensure_ascii=False)


def ok_line(unchecked: tuple[str, ...]) -> str:
    """One line of JSON for nothing found; `unchecked` names what could not be looked at here."""
    return json.dumps({"ok": True, "unchecked": list(unchecked)}, ensure_ascii=False)


def broken_line(error: BaseException) -> str:
    """One line of JSON for a check that failed itself: `ok` is null, neither yes nor no."""
    message = f"the check itself failed: {type(error).__name__}: {error}"
    fields = {"ok": None, "field": "", "reason": "Internal", "message": message}
    return json.dumps(fields, ensure_ascii=False)
