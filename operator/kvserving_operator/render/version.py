"""Which flags an engine has follows from its vLLM version."""

import re
from dataclasses import dataclass

_TAG = re.compile(r":v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.\w]*)$")
_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, order=True)
class EngineVersion:
    """A vLLM release."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


QUIET_ENDPOINTS = EngineVersion(0, 16)
"""First release with `--disable-access-log-for-endpoints`."""
SHUTDOWN_TIMEOUT = EngineVersion(0, 18)
"""First release with `--shutdown-timeout`."""
CUSTOM_BUCKETS = EngineVersion(0, 32)
"""First release with `--custom-histogram-buckets`."""


def parse_version(text: str) -> EngineVersion | None:
    """Release named by a version string, None where it names none."""
    return _matched(_VERSION.match(text))


def version_of_image(image: str) -> EngineVersion | None:
    """Release named by an image's tag, None where it has none (`latest`, a digest alone)."""
    return _matched(_TAG.search(image.partition("@")[0]))


def _matched(match: re.Match[str] | None) -> EngineVersion | None:
    return EngineVersion(*(int(part or 0) for part in match.groups())) if match else None
