"""What a profile stands in for, and what it leaves alone."""

from typing import Any

import pytest

from kvserving_operator.profiles import allowed_dtypes
from kvserving_operator.render.args import engine_args
from kvserving_operator.render.engine import resolve
from kvserving_operator.revisions import inputs_hash
from kvserving_operator.settings import Settings
from kvserving_operator.starting import tried_on
from kvserving_operator.tuner_settings import tuning_settings
from kvserving_tuner.decision import Knob
from kvserving_tuner.profiles import PROFILES, ProfileName
from kvserving_tuner.rules import Ability
from operatorkit.specs import NAME, engine_spec, spec_of

GPU = {"accelerator": "NVIDIA", "kvCacheMemory": None}
USES = tuple(PROFILES)


def args_of(**spec: Any) -> tuple[str, ...]:
    made = spec_of(**spec)
    return engine_args(resolve(NAME, made, Settings(), None, tried_on(made)))


def on_gpu(**engine: Any) -> dict[str, Any]:
    return {key: value for key, value in {**engine_spec(), **GPU, **engine}.items() if value}


def budget(args: tuple[str, ...]) -> list[str]:
    return [arg for arg in args if arg.startswith("--max-num-batched-tokens")]


def test_without_a_profile_nothing_is_assumed() -> None:
    assert allowed_dtypes(spec_of()) == ()
    assert budget(args_of(engine=on_gpu())) == []
    assert inputs_hash(spec_of()) == inputs_hash(spec_of(profile="Custom"))
    assert tuning_settings(spec_of()) == tuning_settings(spec_of(profile="Custom"))


@pytest.mark.parametrize("name", USES)
def test_formats_of_a_profile_are_allowed_and_none_is_set(name: ProfileName) -> None:
    spec = spec_of(profile=name.value)
    assert allowed_dtypes(spec) == ("auto", *PROFILES[name].dtypes)
    assert not any(arg.startswith("--kv-cache-dtype") for arg in args_of(profile=name.value))
    assert tuning_settings(spec).abilities[Knob.KV_CACHE_DTYPE] is Ability.RECOMMEND
    tried = spec_of(profile=name.value, rollbackPolicyRef={"name": "policy"})
    assert tuning_settings(tried).abilities[Knob.KV_CACHE_DTYPE] is Ability.TRIAL
    assert tried_on(tried) == ("auto", *allowed_dtypes(tried))


def test_formats_that_are_set_go_before_a_profiles() -> None:
    spec = spec_of(profile="Document", tuning={"allowedDtypes": ["auto", "int8"]})
    assert allowed_dtypes(spec) == ("auto", "int8")
    own = spec_of(profile="Video", kvCache={"dtype": "int4"})
    # What is served now is always a way back.
    assert allowed_dtypes(own) == ("int4", "fp8_e4m3", "int8")
    plain = spec_of(profile="Chat", kvCache={"dtype": "fp8_e4m3"})
    assert allowed_dtypes(plain) == ("fp8_e4m3", "int8", "k8v4")


def test_a_stock_image_is_offered_no_format_of_ours() -> None:
    spec = spec_of(profile="Document", engine={**engine_spec(), "plugin": "Disabled"})
    assert allowed_dtypes(spec) == ("auto", "fp8_e4m3")


@pytest.mark.parametrize("name", USES)
def test_a_step_has_the_profiles_tokens_on_a_gpu(name: ProfileName) -> None:
    args = args_of(profile=name.value, engine=on_gpu())
    assert budget(args) == [f"--max-num-batched-tokens={PROFILES[name].batched_tokens}"]
    # On a CPU the engine's own default stays.
    assert budget(args_of(profile=name.value)) == []


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"maxNumBatchedTokens": 512, "maxNumSeqs": 64}, ["--max-num-batched-tokens=512"]),
        ({"chunkedPrefill": "Disabled"}, []),
        ({"kvCacheMemory": "20Gi"}, []),
        ({"maxNumSeqs": 2048}, ["--max-num-batched-tokens=2048"]),
    ],
)
def test_what_is_set_about_steps_is_left_alone(engine: dict[str, Any], expected: list[str]) -> None:
    assert budget(args_of(profile="Chat", engine=on_gpu(**engine))) == expected


def test_video_has_limits_of_frames_that_extra_args_replace() -> None:
    args = args_of(profile="Video")
    assert '--limit-mm-per-prompt={"video":1,"image":32}' in args
    assert '--media-io-kwargs={"video":{"num_frames":32}}' in args
    own = ["--limit_mm_per_prompt.video=4"]
    args = args_of(profile="Video", engine={**engine_spec(), "extraArgs": own})
    assert [arg for arg in args if "limit" in arg] == own
    assert any(arg.startswith("--media-io-kwargs") for arg in args)


def test_a_window_is_a_recommendation_for_chats_alone() -> None:
    abilities = {
        name: tuning_settings(spec_of(profile=name.value)).ability(Knob.EVICTION) for name in USES
    }
    assert abilities.pop(ProfileName.CHAT) is Ability.RECOMMEND
    assert set(abilities.values()) == {None}
    window = {"eviction": {"policy": "StreamingLLM", "windowTokens": 4096}}
    evicting = tuning_settings(spec_of(profile="Chat", kvCache=window))
    assert evicting.ability(Knob.EVICTION) is None


def test_another_profile_is_another_pod() -> None:
    assert inputs_hash(spec_of(profile="Chat")) != inputs_hash(spec_of())
