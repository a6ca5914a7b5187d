"""The store's kernel as a GPU's compiler takes it, which is stricter than the interpreter.

No GPU is needed to compile for one. Run by test_operations.py, without the interpreter.
"""

from collections.abc import Callable
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
    """Stands for a kernel and keeps what it was to be compiled for, or run with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.values: dict[str, Any] = {}
        self.options: dict[str, Any] = {}
        self.compiled: list[dict[str, Any]] = []
        self.run: list[dict[str, Any]] = []

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **named: Any) -> None:
        """Keep arguments by name, and options of the compiler apart."""
        self._keep(arguments, named)
        self.compiled.append(self._needs())

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: Any, **named: Any) -> None:
            self._keep(arguments, named)
            self.run.append(self._needs())

        return run

    def _keep(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        names = self.kernel.arg_names
        self.values = dict(zip(names, arguments, strict=False))
        self.values |= {name: value for name, value in named.items() if name in names}
        self.options = {name: value for name, value in named.items() if name not in names}

    def _needs(self) -> dict[str, Any]:
        """What Triton compiles apart: types, and whether numbers are 1 or multiples of 16."""
        needs = dict(self.options)
        for parameter in self.kernel.params:
            value = self.values[parameter.name]
            if isinstance(value, torch.Tensor):
                aligned = not parameter.do_not_specialize_on_alignment
                needs[parameter.name] = (value.dtype, aligned and value.data_ptr() % 16)
            elif parameter.is_constexpr:
                needs[parameter.name] = value
            elif not parameter.do_not_specialize:
                needs[parameter.name] = (value == 1, value % 16 == 0, value < 1 << 31)
        return needs


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


@pytest.mark.parametrize("tokens", [1, 3, 1500])
def test_what_an_engine_stores_was_compiled_before(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvserving_kernels.ops import triton_store
    from kvserving_kernels.ops.triton_operations import TritonOperations
    from kvserving_kernels.ops.triton_step import compile_for

    recorder = Recorder(triton_store.store_kernel)
    monkeypatch.setattr(triton_store, "store_kernel", recorder)
    # A head size for which there is no decode kernel, whose compiler would ask for a GPU.
    page = layout_of("int4").page(32, 80)
    compile_for.cache_clear()
    TritonOperations().prepare(page, 4, 2, torch.bfloat16, torch.device("cpu"))
    compile_for.cache_clear()
    _, key, value = torch.zeros((tokens, 8, 80), dtype=torch.bfloat16).split([4, 2, 2], 1)
    pages = torch.zeros((50, 2, 32, page.bytes_per_token), dtype=torch.uint8)
    # Engines pass the part of a longer buffer that is theirs.
    slots = torch.arange(tokens + 1)[1:]
    counters = torch.zeros(2, dtype=torch.int64)
    TritonOperations().store(page, key, value, pages, slots, counters)
    (ran,) = recorder.run
    assert ran in recorder.compiled
