"""Settings of the plugin, from the object `kvserving` in vLLM's `--additional-config`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvserving_kernels.errors import InvalidSettingError
from kvserving_kernels.eviction import ANY_ENGINE, NO_EVICTION, Eviction, read_eviction
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.formats.flags import EVICTION_FIELD, FIELD, OBJECT

FIELDS: Final = (FIELD, EVICTION_FIELD)


@dataclass(frozen=True)
class Settings:
    """What the plugin was asked to do; None leaves it to vLLM."""

    kv_cache_dtype: KVCacheDType | None = None
    eviction: Eviction = NO_EVICTION


def read_settings(additional_config: object) -> Settings:
    """Read the settings; InvalidSettingError names the first field at fault.

    Other plugins' objects beside ours are not looked at.
    """
    if not isinstance(additional_config, Mapping) or OBJECT not in additional_config:
        return Settings()
    document = additional_config[OBJECT]
    if not isinstance(document, Mapping):
        raise InvalidSettingError(OBJECT, "a JSON object", json.dumps(document, default=repr))
    for field in document:
        if field not in FIELDS:
            expected = f"no field but {', '.join(FIELDS)}"
            raise InvalidSettingError(f"{OBJECT}.{field}", expected, "it")
    return Settings(_dtype(document.get(FIELD)), _eviction(document.get(EVICTION_FIELD)))


def _dtype(name: object) -> KVCacheDType | None:
    if name is None:
        return None
    if not isinstance(name, str) or name not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise InvalidSettingError(
            f"{OBJECT}.{FIELD}",
            f"one of {known} (vLLM's own formats are set by --kv-cache-dtype)",
            json.dumps(name, default=repr),
        )
    return KVCacheDType(name)


def _eviction(document: object) -> Eviction:
    if document is None:
        return NO_EVICTION
    # The block size is not known yet; what depends on it is looked at where it is.
    return read_eviction(f"{OBJECT}.{EVICTION_FIELD}", document, ANY_ENGINE, InvalidSettingError)
