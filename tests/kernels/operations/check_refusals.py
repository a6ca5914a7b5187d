"""What attention of a format refuses as vLLM builds a layer; run by test_operations.py."""

from typing import Any

import pytest

from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.formats import LAYOUTS, KVCacheDType

SIZES: dict[str, Any] = {"num_heads": 4, "head_size": 64, "scale": 0.125, "num_kv_heads": 2}


def implementation(dtype: KVCacheDType) -> Any:
    """The implementation that a format's backend gives vLLM."""
    # Where kernels are tested on a GPU of its own, vLLM need not be.
    from kvserving_kernels.plugin.adapters.v0_32 import backend, selection

    return getattr(backend, selection.BACKEND_CLASSES[dtype]).get_impl_cls()


@pytest.mark.parametrize(
    ("argument", "value", "feature"),
    [
        ("alibi_slopes", [0.5, 0.25, 0.125, 0.0625], "ALiBi"),
        ("sliding_window", 4096, "a sliding window"),
        ("logits_soft_cap", 30.0, "a soft cap on logits"),
        ("kv_sharing_target_layer_name", "model.layers.0", "KV shared with another layer"),
        # What this version of ours does not know by name.
        ("sinks", [1.0], "sinks"),
    ],
)
@pytest.mark.parametrize("dtype", list(LAYOUTS))
def test_a_layer_that_the_kernels_do_not_compute_is_refused(
    dtype: KVCacheDType, argument: str, value: object, feature: str
) -> None:
    with pytest.raises(UnsupportedEngineError, match=f"^KV format {dtype}: .*layer with {feature}"):
        implementation(dtype)(**SIZES, **{argument: value})


@pytest.mark.parametrize("dtype", list(LAYOUTS))
def test_a_plain_layer_is_taken(dtype: KVCacheDType) -> None:
    # As vLLM gives what a layer does not have: None, and a soft cap of 0.
    arguments = {
        "alibi_slopes": None, "sliding_window": None, "logits_soft_cap": 0,
        "kv_sharing_target_layer_name": None, "sinks": None,
    }  # fmt: skip
    made = implementation(dtype)(**SIZES, **arguments)
    assert (made.layout.dtype, made.num_heads, made.num_kv_heads) == (dtype, 4, 2)
