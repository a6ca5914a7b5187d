"""The pages for users: complete, with links that lead somewhere and manifests that are valid."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvserving_kernels.formats import LAYOUTS
from kvserving_operator.api.v1alpha1 import (
    KnobName,
    KVCacheSpec,
    parse_policy,
    parse_serving,
    parse_trial,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")])
PARSERS = {"KVServing": parse_serving, "KVRollbackPolicy": parse_policy, "KVTrial": parse_trial}
FORMAT_SECTIONS = ["What it does", "When it hurts", "How to undo"]
KNOB_SECTIONS = ["What it does", "When to change it", "When it hurts", "How to undo"]
# One page for the formats of 16 bits.
FORMATS = {"auto", "fp8_e4m3", *LAYOUTS}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def sections(page: Path) -> list[str]:
    return re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def links(page: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\[[^]]*\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} of {name_of(page)}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path}#{anchor} of {name_of(page)}"


def test_every_format_that_is_served_has_a_page_of_the_same_sections() -> None:
    pages = {page.stem: sections(page) for page in (DOCS / "formats").glob("*.md")}
    assert set(pages) == FORMATS
    assert all(found == FORMAT_SECTIONS for found in pages.values())
    served = re.findall(r"`(\w+)`", KVCacheSpec.model_fields["dtype"].description or "")
    assert FORMATS <= set(served)


def test_every_knob_has_a_page_of_the_same_sections() -> None:
    index = DOCS / "knobs/index.md"
    pages = {page for page in (DOCS / "knobs").glob("*.md") if page != index}
    assert {page.name for page in pages} == {path for path, _ in links(index)}
    assert all(sections(page) == KNOB_SECTIONS for page in pages)
    text = "\n".join(page.read_text() for page in pages)
    for knob in KnobName:
        assert f"`{knob}`" in text


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for page in PAGES:
        for number, block in enumerate(
            re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        ):
            for document in yaml.safe_load_all(block):
                if isinstance(document, dict) and document.get("kind") in PARSERS:
                    yield f"{name_of(page)} {number}", document


@pytest.mark.parametrize(
    ("where", "manifest"), list(manifests()), ids=lambda value: str(value)[:40]
)
def test_manifests_in_pages_are_valid(where: str, manifest: dict[str, Any]) -> None:
    parsed = PARSERS[manifest["kind"]]({**manifest, "metadata": {**manifest["metadata"]}})
    assert parsed is not None, where


def test_every_result_is_in_the_evaluation() -> None:
    linked = {Path(path).name for path, _ in links(DOCS / "evaluation.md")}
    files = {path.name for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert files <= linked


def test_console_blocks_apply_files_that_exist() -> None:
    for page in PAGES:
        for path in re.findall(r"apply [^\n]*-f ((?:examples|charts|crds)/\S+)", page.read_text()):
            assert (ROOT / path).exists(), f"{path} of {name_of(page)}"
