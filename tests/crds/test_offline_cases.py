"""The models accept and reject what the API server does, with messages a user can act on."""

from typing import Any

import pytest

from kvserving_operator.api.errors import SpecError
from kvserving_operator.api.v1alpha1 import PARSERS


def test_accepts(accept_case: Any) -> None:
    manifest = accept_case.manifest
    resource = PARSERS[manifest["kind"]](manifest)
    assert resource.metadata.name == manifest["metadata"]["name"]
    # What was parsed and written again is the same resource.
    assert PARSERS[manifest["kind"]](resource.to_api()) == resource


def test_rejects_and_names_the_field(reject_case: Any) -> None:
    manifest = reject_case.manifest
    with pytest.raises(SpecError) as caught:
        PARSERS[manifest["kind"]](manifest)
    message = str(caught.value)
    assert reject_case.field in message
    for words in reject_case.offline:
        assert words in message
    # One fault gives one message, and it stands at that field.
    assert len(caught.value.errors) == 1
