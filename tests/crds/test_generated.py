"""Generated files are those that the models give, and a difference is found."""

from pathlib import Path

import pytest

from kvserving_operator.api import crd, docs
from kvserving_operator.api.errors import DriftError
from kvserving_operator.api.generated import check, drifted, write

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", [crd, docs], ids=["crds", "docs"])
def test_no_drift(module: object) -> None:
    files = module.generated_files()  # type: ignore[attr-defined]
    assert files
    check(files, ROOT)


def test_no_definition_is_left_over() -> None:
    generated = {path for path in crd.generated_files() if path.parts[0] == "crds"}
    assert {path.relative_to(ROOT) for path in (ROOT / "crds").iterdir()} == generated


def test_drift_is_found(tmp_path: Path) -> None:
    files = {Path("a/one.yaml"): "1\n", Path("two.yaml"): "2\n"}
    write(files, tmp_path)
    assert not drifted(files, tmp_path)
    (tmp_path / "two.yaml").write_text("changed\n")
    assert drifted(files, tmp_path) == [Path("two.yaml")]
    (tmp_path / "a/one.yaml").unlink()
    with pytest.raises(DriftError, match=r"a/one\.yaml, two\.yaml"):
        check(files, tmp_path)
