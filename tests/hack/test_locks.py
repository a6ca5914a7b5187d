"""The locks: complete, hashed, and free of addresses."""

import re

import pytest

from localcluster.layout import REPOSITORY

LOCKS = sorted((REPOSITORY / "requirements").glob("*.txt"))
PINNED = re.compile(r"^[a-z0-9][a-z0-9._-]*(\[[a-z,]+\])?==\S+", re.MULTILINE)


@pytest.mark.parametrize(
    "name", [path.name for path in LOCKS if not path.name.endswith(".overrides.txt")]
)
def test_a_lock_pins_and_hashes_everything_and_names_no_index(name: str) -> None:
    text = (REPOSITORY / "requirements" / name).read_text()
    assert "://" not in text
    assert "--index" not in text
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert blocks
    for block in blocks:
        assert PINNED.match(block), block.splitlines()[0]
        assert "--hash=sha256:" in block, block.splitlines()[0]


def test_the_operator_lock_has_neither_torch_nor_vllm() -> None:
    text = (REPOSITORY / "requirements/operator.txt").read_text()
    assert not re.search(r"^(torch|vllm|triton)", text, flags=re.MULTILINE)


def test_the_engine_lock_has_none_of_what_its_overrides_leave_out() -> None:
    text = (REPOSITORY / "requirements/engine-cpu.txt").read_text()
    for name in ("torchvision", "torchaudio", "torchcodec", "triton"):
        assert not re.search(rf"^{name}==", text, flags=re.MULTILINE)
    assert re.search(r"^torch==2\.13\.0 ", text, flags=re.MULTILINE)
