"""Which engines of an image with compiled kernels get them, and which stay as they are."""

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvserving_kernels.plugin.adapters import v0_32

PACKAGE = "kvserving_kernels.plugin.adapters.v0_32"
POLICY = {"policy": "StreamingLLM", "sink_tokens": 4, "window_tokens": 256}
INT4 = {"kvserving": {"kv_cache_dtype": "int4"}}
EVICT = {"kvserving": {"eviction": POLICY}}
MACHINE = "the machine at hand"


class Image:
    """A process of vLLM's in an image that has compiled kernels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.shipped, self.root = folder / "shipped", folder / "root"
        self.shipped.mkdir()
        (self.shipped / "machine.txt").write_text(MACHINE)
        self.compiled = 0
        monkeypatch.setenv("KVSERVING_PRECOMPILED", str(self.shipped))
        # Set and taken away, so that what a test puts there is taken away after it.
        monkeypatch.setenv("NUMBA_CACHE_DIR", "")
        monkeypatch.delenv("NUMBA_CACHE_DIR")

        class Platform:
            """A platform of vLLM's."""

            @classmethod
            def check_and_update_config(cls, vllm_config: object) -> None:
                """Find nothing wrong."""

            @classmethod
            def get_attn_backend_cls(cls, *arguments: object) -> str:
                """Choose as if we were not there."""
                return "CPU_ATTN"

            def is_cpu(self) -> bool:
                """A CPU."""
                return True

        class EngineCore:
            """An engine core."""

        self.platform: Any = Platform()
        self.config: Any = None
        modules: dict[str, dict[str, object]] = {
            "vllm": {"__version__": "0.32.0"},
            "vllm.envs": {"VLLM_CACHE_ROOT": str(self.root)},
            "vllm.config": {"get_current_vllm_config": lambda: self.config},
            "vllm.platforms": {"current_platform": self.platform},
            "vllm.v1": {},
            "vllm.v1.engine": {},
            "vllm.v1.engine.core": {"EngineCore": EngineCore},
            # These two need torch.
            "kvserving_kernels.ops.registry": {"why_not_compiled": self._compile},
            f"{PACKAGE}.evicting": {"published": lambda path, *_: path},
        }
        for name, contents in modules.items():
            module = ModuleType(name)
            module.__dict__.update(contents)
            monkeypatch.setitem(sys.modules, name, module)
            parent, _, child = name.rpartition(".")
            if parent:
                monkeypatch.setattr(import_module(parent), child, module, raising=False)
        # Imported anew with these, and forgotten again after the test.
        monkeypatch.setitem(sys.modules, f"{PACKAGE}.warming", ModuleType("warming"))
        del sys.modules[f"{PACKAGE}.warming"]
        monkeypatch.delattr(v0_32, "warming", raising=False)
        from kvserving_kernels.plugin.adapters.v0_32 import waiting, warming

        self.warming = warming
        monkeypatch.setattr(warming, "machine", lambda: MACHINE)
        monkeypatch.setattr(waiting, "sleep_at_once", lambda: None)

    def start(self, named: bool, additional: object) -> None:
        """Install the plugin, check a configuration and choose a backend, as vLLM does."""
        v0_32.install(named)
        model = SimpleNamespace(
            dtype="torch.bfloat16", max_model_len=1024, get_head_size=lambda: 64, is_hybrid=False,
            is_encoder_decoder=False, rswa_window=None,
            attention_chunk_size=None, is_mm_prefix_lm=False, use_mla=False,
            uses_alibi=False, get_sliding_window=lambda: None,
        )  # fmt: skip
        self.config = SimpleNamespace(
            additional_config=additional, model_config=model, max_in_flight_tokens=256,
            cache_config=SimpleNamespace(
                cache_dtype="auto", block_size=128, user_specified_block_size=True,
                kv_sharing_fast_prefill=False, kv_cache_dtype_skip_layers=[],
                kv_offloading_size=None,
            ),
            device_config=SimpleNamespace(device_type="cpu"),
            parallel_config=SimpleNamespace(
                prefill_context_parallel_size=1, decode_context_parallel_size=1
            ),
            speculative_config=None, kv_transfer_config=None,
            attention_config=SimpleNamespace(use_non_causal=False),
        )  # fmt: skip
        self.platform.check_and_update_config(self.config)
        self.named_folder = os.environ.get("NUMBA_CACHE_DIR")
        layer = SimpleNamespace(
            attn_type="decoder", use_mla=False, has_sliding_window=False, has_sink=False,
            use_sparse=False, use_mm_prefix=False, use_non_causal=False,
        )  # fmt: skip
        self.platform.get_attn_backend_cls(None, layer)

    def _compile(self) -> None:
        self.compiled += 1


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Image:
    return Image(monkeypatch, tmp_path)


@pytest.mark.parametrize("additional", [None, {}, {"another": {"kv_cache_dtype": "int4"}}])
def test_an_engine_that_does_not_ask_for_the_plugin_stays_as_it_is(
    image: Image, additional: object
) -> None:
    image.start(False, additional)
    assert "NUMBA_CACHE_DIR" not in os.environ
    assert (image.root.exists(), image.compiled) == (False, 0)


@pytest.mark.parametrize(
    ("named", "additional"), [(True, {}), (True, INT4), (False, INT4), (False, EVICT)]
)
def test_an_engine_that_asks_for_it_has_the_kernels_of_its_image(
    image: Image, named: bool, additional: object
) -> None:
    image.start(named, additional)
    folder = image.root / "kvserving"
    # Known before a worker imports Numba, which reads it then.
    assert image.named_folder == str(folder)
    assert (folder / "machine.txt").read_text() == MACHINE
    assert image.compiled == 1


@pytest.mark.parametrize(("additional", "compiled"), [({}, 0), (EVICT, 0), (INT4, 1)])
def test_kernels_for_another_machine_are_compiled_for_a_format_of_ours_alone(
    image: Image, additional: object, compiled: int
) -> None:
    (image.shipped / "machine.txt").write_text("another machine")
    image.start(True, additional)
    assert (image.root.exists(), image.compiled) == (False, compiled)


def test_a_folder_that_somebody_has_named_is_kept(
    image: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
    image.start(False, INT4)
    assert (tmp_path / "mine" / "machine.txt").exists()
    assert not image.root.exists()


def test_who_reads_the_kernels_has_all_of_the_old_or_all_of_the_new(image: Image) -> None:
    image.start(True, INT4)
    machine = image.root / "kvserving" / "machine.txt"
    with machine.open() as read:
        (image.shipped / "more").write_text("another engine's image")
        assert image.warming.take_over(image.shipped, machine.parent)
        # Written over in place, a file is empty for a moment, and this reader's too.
        assert os.fstat(read.fileno()).st_ino != machine.stat().st_ino
        assert read.read() == MACHINE
    assert sorted(path.name for path in machine.parent.iterdir()) == sorted(
        path.name for path in image.shipped.iterdir()
    )


def test_a_folder_that_takes_no_file_keeps_no_half_of_one(image: Image, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "taken").mkdir(parents=True)
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OSError, match="taken"):
        image.warming._put(str(tmp_path / "taken"), str(target / "taken"))
    assert [path.name for path in target.iterdir()] == ["taken"]
