"""One canonical hash for "is it the same?": key order and formatting never count."""

import hashlib
import json
from typing import Any

HASH_LENGTH = 16


def content_hash(value: Any) -> str:
    """Short hexadecimal hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
