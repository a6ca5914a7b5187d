"""The questions of `prompts.yaml`."""

from pathlib import Path

import yaml

_PROMPTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
SYSTEM: str = _PROMPTS["system"]
OPENINGS: tuple[str, ...] = tuple(_PROMPTS["openings"])
FOLLOW_UPS: tuple[str, ...] = tuple(_PROMPTS["follow_ups"])
