"""Strata of prompts by length: a setting may serve short ones well and long ones badly."""

from typing import Final

STRATA: Final = ((1024, "Short"), (4096, "Medium"), (16_384, "Long"))
LONGEST: Final = "VeryLong"


def stratum_of(tokens: int) -> str:
    """Length stratum of a prompt."""
    return next((name for most, name in STRATA if tokens < most), LONGEST)
