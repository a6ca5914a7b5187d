"""Profiles: moves that exist, reasons for all, and nobody's own settings touched."""

import argparse
import json
from pathlib import Path

import pytest

from kvserving_kernels.formats import LAYOUTS, NATIVE
from kvserving_tuner.cli import main
from kvserving_tuner.commands.options import FORMATS, add_ladder, ladder_settings
from kvserving_tuner.decision import Knob
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.profiles import PROFILES, Profile, ProfileName, profile_of
from kvserving_tuner.rules import Ability
from kvserving_tuner.settings import Mode, TuningSettings
from tunerkit.models import LLAMA_8B


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_profile_names_formats_that_are_stored_and_gives_reasons(profile: Profile) -> None:
    stored = {*NATIVE, *LAYOUTS}
    assert profile.dtypes
    assert {*profile.dtypes, profile.dtype.value} <= stored
    assert all((profile.dtype.reason, profile.batched_reason, profile.caching.reason))
    assert profile.watch
    assert profile.eviction.reason
    assert bool(profile.engine_flags) == bool(profile.flags_reason)
    # A window keeps no prefix, so it is not for uses that live on shared ones.
    assert not profile.evicts or profile.name is ProfileName.CHAT


def test_a_profile_is_found_in_any_case_and_custom_is_none() -> None:
    assert profile_of("rag") is PROFILES[ProfileName.RAG]
    assert profile_of("custom") is None
    with pytest.raises(SettingsError, match="one of Chat, RAG, Document, Video, Custom, got Game"):
        profile_of("Game")


def asked(*options: str) -> TuningSettings:
    parser = argparse.ArgumentParser()
    add_ladder(parser)
    return ladder_settings(parser.parse_args(options), Mode.AUTO, Ability.CHANGE)


def test_without_a_profile_all_is_as_before() -> None:
    assert asked().allowed_dtypes == FORMATS
    assert asked().ability(Knob.EVICTION) is Ability.RECOMMEND
    assert asked("--profile", "Custom") == asked()


def test_a_profile_says_which_moves_are_allowed() -> None:
    assert asked("--profile", "Document").allowed_dtypes[-1] == "int4"
    assert asked("--profile", "Video").allowed_dtypes == ("fp8_e4m3", "int8")
    assert asked("--profile", "RAG").ability(Knob.EVICTION) is None
    assert asked("--profile", "Chat").ability(Knob.EVICTION) is Ability.RECOMMEND


def test_formats_that_are_named_go_before_a_profiles() -> None:
    assert asked("--profile", "Video", "--dtype", "int4").allowed_dtypes == ("int4",)
    assert asked("--profile", "Video", "--no-dtypes").allowed_dtypes == ()


def test_a_plan_says_what_to_start_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert main(["plan", "--config", str(tmp_path), "--profile", "Video"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "To start with for Video" in said
    assert '--limit-mm-per-prompt {"video":1,"image":32}' in said
    assert "Watch tokens per request" in said


def test_a_plan_offers_no_format_that_a_model_cannot_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, "sliding_window": 4096}))
    assert main(["plan", "--config", str(tmp_path), "--profile", "Document"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "where the cache binds: fp8_e4m3." in said
