"""The hash of an engine's weights: other weights have another one, a copy has the same."""

import shutil
from pathlib import Path

import pytest

from kvserving_kernels.plugin.weights import PLACE_BYTES, loaded_weights, weights_hash


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    return model


def test_a_copy_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert weights_hash(folder) == weights_hash(tmp_path / "copy")


@pytest.mark.parametrize("at", [0, 100_000, 255_999])
def test_another_number_makes_another_model(folder: Path, at: int) -> None:
    before = weights_hash(folder)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[at] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert before != weights_hash(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-2.safetensors"])
def test_so_does_another_file(folder: Path, name: str) -> None:
    before = weights_hash(folder)
    (folder / name).write_text("other")
    assert before != weights_hash(folder)


def test_of_large_files_parts_are_read_that_reach_from_begin_to_end(folder: Path) -> None:
    large = folder / "model.safetensors"
    size = 100 * PLACE_BYTES
    with large.open("wb") as file:
        file.truncate(size)
    before = weights_hash(folder)
    for begin in (0, size // 2, size - PLACE_BYTES):
        with large.open("r+b") as file:
            file.seek(begin)
            file.write(b"trained" * (PLACE_BYTES // 7))
        changed = weights_hash(folder)
        assert before != changed
        before = changed


def test_what_cannot_be_told_is_none(tmp_path: Path) -> None:
    assert weights_hash(tmp_path) is None
    assert loaded_weights(str(tmp_path), None) is None
    assert loaded_weights("organization/never-downloaded", "main") is None
