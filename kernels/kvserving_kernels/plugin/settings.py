"""Settings of the plugin, from the object `kvserving` in vLLM's `--additional-config`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from kvserving_kernels.errors import InvalidSettingError
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.formats.flags import FIELD, OBJECT


@dataclass(frozen=True)
class Settings:
    """What the plugin was asked to do; None leaves it to vLLM."""

    kv_cache_dtype: KVCacheDType | None = None


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
        if field != FIELD:
            raise InvalidSettingError(f"{OBJECT}.{field}", f"no field but {FIELD}", "it")
    name = document.get(FIELD)
    if name is None:
        return Settings()
    if not isinstance(name, str) or name not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise InvalidSettingError(
            f"{OBJECT}.{FIELD}",
            f"one of {known} (vLLM's own formats are set by --kv-cache-dtype)",
            json.dumps(name, default=repr),
        )
    return Settings(KVCacheDType(name))
