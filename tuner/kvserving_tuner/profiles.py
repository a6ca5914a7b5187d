"""What to start with and which moves to allow, by what a model is used for; pure.

A profile is a starting point for who has not measured yet. Whatever a user has set goes before it,
and measurements go before both: a format is only gone to where the cache binds, by a trial.
docs/profiles.md says the same for people.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvserving_tuner.errors import SettingsError


class ProfileName(StrEnum):
    """What a model is used for."""

    CHAT = "Chat"
    RAG = "RAG"
    DOCUMENT = "Document"
    VIDEO = "Video"
    CUSTOM = "Custom"
    """Nothing is assumed: what is not set is the default."""


@dataclass(frozen=True)
class Advice:
    """A value to start with, and why."""

    value: str
    reason: str


@dataclass(frozen=True)
class Profile:
    """One use of a model."""

    name: ProfileName
    summary: str
    dtype: Advice
    """KV format to begin with, where its quality has been looked at."""
    dtypes: tuple[str, ...]
    """Formats that the ladder may go to, mildest first."""
    batched_tokens: int
    """Tokens of a step: what a long prompt and answers under way share."""
    batched_reason: str
    caching: Advice
    eviction: Advice
    """What leaves the cache while a request runs; `None` where nothing may."""
    watch: str
    """What to look at once it serves."""
    engine_flags: Mapping[str, str]
    """Further flags of `vllm serve` with their values."""
    flags_reason: str = ""

    @property
    def evicts(self) -> bool:
        """Whether the ladder may recommend a window."""
        return self.eviction.value != NO_EVICTION


NO_EVICTION: Final = "None"
SMALL_STEP, LARGE_STEP = 2048, 8192

CHAT: Final = Profile(
    ProfileName.CHAT,
    "short turns of many people, who read as tokens come",
    Advice("fp8_e4m3", "twice the conversations at once, and answers as of 16 bits on most models"),
    ("fp8_e4m3", "int8", "k8v4"),
    SMALL_STEP,
    "a prompt that comes in between holds up everybody's next token for a smaller step",
    Advice("Enabled", "each turn begins with all turns before it"),
    Advice(
        "StreamingLLM",
        "in a conversation that goes on for hours the latest turns matter, and a window bounds "
        "what it holds; it keeps no prefix that a next turn could use, so it is for single long "
        "sessions, and always a recommendation",
    ),
    "time per output token, and probes over several turns with a system prompt: formats that are "
    "fine in one turn have failed there (vllm#38652)",
    {},
)
RAG: Final = Profile(
    ProfileName.RAG,
    "long prompts put together from passages that many requests share, short answers",
    Advice("auto", "answers stand on single figures and names in the passages; formats later"),
    ("fp8_e4m3", "int8", "k8v4"),
    LARGE_STEP,
    "the time to the first token is that of the prompt, which fewer steps read sooner",
    Advice(
        "Enabled",
        "instructions and passages come again: of two published traces 37 and 64 % of the prompt "
        "tokens were computed before. Put what is shared first",
    ),
    Advice(NO_EVICTION, "what is asked for may stand anywhere in the prompt"),
    "the prefix hit ratio, and task probes that look for a passage",
    {},
)
DOCUMENT: Final = Profile(
    ProfileName.DOCUMENT,
    "one long document in each request, read as a whole",
    Advice("fp8_e4m3", "few documents fit at once, so the cache binds first"),
    ("fp8_e4m3", "int8", "k8v4", "int4_hadamard", "int4"),
    LARGE_STEP,
    "a document is read in fewer steps",
    Advice("Enabled", "questions about the same document read it once"),
    Advice(NO_EVICTION, "the whole document has to be seen"),
    "probes with long contexts: what few bits lose grows with length, and 4 bits have to be tried "
    "at the lengths that are served",
    {},
)
VIDEO: Final = Profile(
    ProfileName.VIDEO,
    "videos or many images in each request, about which more than one thing is asked",
    Advice("auto", "keys of images have outliers that other prompts do not show (vllm#41343)"),
    ("fp8_e4m3", "int8"),
    LARGE_STEP,
    "a video is thousands of tokens before the first word",
    Advice("Enabled", "a video's tokens are by far the most, and a second question finds them"),
    Advice(NO_EVICTION, "the moment that is asked about may be any"),
    "tokens per request, and answers about single moments before and after a change of format",
    {
        "--limit-mm-per-prompt": '{"video":1,"image":32}',
        "--media-io-kwargs": '{"video":{"num_frames":32}}',
    },
    "without a limit one long video takes the cache of all others: 32 frames of each, one video "
    "and 32 images a request",
)

PROFILES: Final[Mapping[ProfileName, Profile]] = {
    profile.name: profile for profile in (CHAT, RAG, DOCUMENT, VIDEO)
}


def profile_of(name: str) -> Profile | None:
    """A profile by its name, None for Custom; SettingsError lists the names."""
    by_lower = {known.value.lower(): known for known in ProfileName}
    known = by_lower.get(name.lower())
    if known is None:
        raise SettingsError(f"profile: expected one of {', '.join(ProfileName)}, got {name}")
    return PROFILES.get(known)
