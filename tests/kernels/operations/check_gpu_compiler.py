"""The store's kernel as a GPU's compiler takes it, which is stricter than the interpreter.

No GPU is needed to compile for one. Run by test_operations.py, without the interpreter.
"""

from typing import Any

import pytest
import torch

from kvserving_kernels.formats import layout_of

POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}


class Recorder:
    """Stands for a kernel and keeps what it is called with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.values: dict[str, Any] = {}
        self.options: dict[str, Any] = {}

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **named: Any) -> None:
        """Keep arguments by name, and options of the compiler apart."""
        names = self.kernel.arg_names
        self.values = dict(zip(names, arguments, strict=False))
        self.values |= {name: value for name, value in named.items() if name in names}
        self.options = {name: value for name, value in named.items() if name not in names}


# No anchors; anchors, and both rotated; codes that a head size which is no power of two spreads.
@pytest.mark.parametrize(
    ("dtype", "block_size", "head_size"),
    [("int8", 64, 128), ("int4_hadamard", 32, 64), ("k2v4", 48, 80)],
)
def test_it_is_compiled_without_a_gpu_and_spills_nothing(
    dtype: str, block_size: int, head_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kvserving_kernels.ops import triton_store

    recorder = Recorder(triton_store.store_kernel)
    monkeypatch.setattr(triton_store, "store_kernel", recorder)
    page = layout_of(dtype).page(block_size, head_size)
    key = torch.empty((1, 2, head_size), dtype=torch.bfloat16)
    records = torch.empty((1, 2, page.record_bytes), dtype=torch.uint8)
    numbers = torch.zeros(2, dtype=torch.int64)
    triton_store.store(
        page, key, key, numbers[:1], records, torch.ones(head_size), numbers,
        triton_store.PROMPT, compile_only=True,
    )  # fmt: skip
    signature, constants = {}, {}
    for place, (name, value) in enumerate(recorder.values.items()):
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        elif name.isupper():
            signature[name] = "constexpr"
            constants[(place,)] = value
        else:
            signature[name] = "i32"
    source = ASTSource(recorder.kernel, signature, constants)
    target = GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=target, options=recorder.options)
    assert ".local" not in compiled.asm["ptx"]
    assert compiled.metadata.shared < 48 * 1024
