"""The configuration of a model on a hub, fetched as the engine would; no weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.model import FIELD, QUANTIZATION_FILE, ModelConfig, read_config

Download = Callable[[str, str, str | None], str]
"""Fetches a file of a model by its name and revision; gives its path."""

_WRONG: Final = ("RepositoryNotFoundError", "RevisionNotFoundError")
"""The hub's answers that an engine would get as well; whatever else fails may be this pod's."""

_ABSENT: Final = "EntryNotFoundError"
_NOT_HERE: Final = "LocalEntryNotFoundError"


def read_hub_model(
    model: str, revision: str | None, download: Download
) -> ModelConfig | Finding | None:
    """Read a hub's config.json: None where the hub cannot be reached or holds it otherwise."""
    try:
        path = download(model, "config.json", revision)
    # Whatever a hub's client raises: only its own two words say something of the model.
    except Exception as error:
        if not _is(error, *_WRONG):
            return None
        at = f" at revision {revision}" if revision else ""
        first = (str(error).strip().splitlines() or [""])[0]
        message = f"the hub has no model {model}{at}, or not for this token: {first}"
        return Finding(FIELD, Reason.MODEL_NOT_FOUND, message)
    return read_config(Path(path), _may_have(model, revision, download))


def _may_have(model: str, revision: str | None, download: Download) -> bool:
    """Whether the other file may be there: not if the hub says that it is not."""
    try:
        download(model, QUANTIZATION_FILE, revision)
    except Exception as error:
        return not _is(error, _ABSENT) or _is(error, _NOT_HERE)
    return True


def _is(error: Exception, *names: str) -> bool:
    return any(base.__name__ in names for base in type(error).__mro__)


def download(model: str, name: str, revision: str | None) -> str:
    """Fetch a file with the engine's own client, which knows its token, endpoint and cache."""
    from huggingface_hub import hf_hub_download

    path: str = hf_hub_download(model, name, revision=revision)
    return path
