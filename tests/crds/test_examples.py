"""Every example is accepted, offline and by a real API server."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvserving_operator.api.v1alpha1 import PARSERS

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = [
    pytest.param(manifest, id=str(path.relative_to(EXAMPLES)))
    for path in sorted(EXAMPLES.glob("*/*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
    if manifest["apiVersion"].startswith("kvserving.dev/")
]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_an_example_follows_the_models(manifest: dict[str, Any]) -> None:
    assert PARSERS[manifest["kind"]](manifest).metadata.name == manifest["metadata"]["name"]


@pytest.mark.cluster
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_an_example_is_accepted_by_the_api_server(server: Any, manifest: dict[str, Any]) -> None:
    assert server.refusal(manifest) == ""


def test_every_example_explains_itself() -> None:
    folders = [path for path in EXAMPLES.iterdir() if path.is_dir()]
    assert len(folders) >= 4
    for folder in folders:
        assert (folder / "README.md").read_text().startswith("# ")
        assert list(folder.glob("*.yaml"))


def test_a_policy_that_an_example_names_stands_beside_it() -> None:
    for folder in EXAMPLES.iterdir():
        manifests = [
            manifest
            for path in folder.glob("*.yaml")
            for manifest in yaml.safe_load_all(path.read_text())
        ]
        policies = {m["metadata"]["name"] for m in manifests if m["kind"] == "KVRollbackPolicy"}
        named = {
            m["spec"]["rollbackPolicyRef"]["name"]
            for m in manifests
            if "rollbackPolicyRef" in m["spec"]
        }
        assert named <= policies
