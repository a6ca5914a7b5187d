"""Settings in `--additional-config`: read, or refused with the field at fault."""

import pytest

from kvserving_kernels.errors import InvalidSettingError
from kvserving_kernels.eviction import StreamingLLM
from kvserving_kernels.formats import LAYOUTS
from kvserving_kernels.plugin.settings import Settings, read_settings


@pytest.mark.parametrize(
    "document", [None, {}, {"other": {"kv_cache_dtype": 7}}, {"kvserving": {}}, "text"]
)
def test_what_is_not_asked_for_is_left_to_vllm(document: object) -> None:
    assert read_settings(document) == Settings()


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_each_own_format_may_be_named(dtype: str) -> None:
    found = read_settings({"kvserving": {"kv_cache_dtype": str(dtype)}, "other": 1})
    assert found == Settings(dtype)  # type: ignore[arg-type]


def test_eviction_may_be_named_with_or_without_a_format() -> None:
    eviction = {"policy": "StreamingLLM", "sink_tokens": 64, "window_tokens": 1024}
    alone = read_settings({"kvserving": {"eviction": eviction}})
    assert alone == Settings(eviction=StreamingLLM(64, 1024))
    both = read_settings({"kvserving": {"kv_cache_dtype": "int4", "eviction": eviction}})
    assert (both.kv_cache_dtype, both.eviction) == ("int4", alone.eviction)
    assert read_settings({"kvserving": {"eviction": {"policy": "None"}}}) == Settings()


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "kvserving"),
        ("int4", "kvserving"),
        (None, "kvserving"),
        ({"kv_cache_dtpye": "int4"}, "kvserving.kv_cache_dtpye"),
        ({"kv_cache_dtype": "int5"}, "kvserving.kv_cache_dtype"),
        ({"kv_cache_dtype": "INT4"}, "kvserving.kv_cache_dtype"),
        ({"kv_cache_dtype": "bfloat16"}, "kvserving.kv_cache_dtype"),
        ({"kv_cache_dtype": 4}, "kvserving.kv_cache_dtype"),
        ({"kv_cache_dtype": ["int4"]}, "kvserving.kv_cache_dtype"),
        ({"eviction": "StreamingLLM"}, "kvserving.eviction"),
        ({"eviction": {"policy": "H2O"}}, "kvserving.eviction.policy"),
        ({"eviction": {"policy": "StreamingLLM"}}, "kvserving.eviction.window_tokens"),
        ({"kv_cache_dtype": "int4", "evict": {}}, "kvserving.evict"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_field_at_fault(document: object, field: str) -> None:
    with pytest.raises(InvalidSettingError) as refused:
        read_settings({"kvserving": document})
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: expected ")
