"""Names of objects for shell completion: quick, silent, and never an error."""

import argparse
from typing import Any

from kvserving_kubectl.api import Connection, KubectlApi
from kvserving_kubectl.errors import PluginError
from kvserving_kubectl.resources import KVSERVINGS, KVTRIALS, Resource

TIMEOUT = "2s"


def complete_servings(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """KVServings of the namespace."""
    return names(KVSERVINGS, prefix, parsed_args)


def complete_trials(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """KVTrials of the namespace."""
    return names(KVTRIALS, prefix, parsed_args)


def names(resource: Resource, prefix: str, options: argparse.Namespace) -> list[str]:
    """Names that begin so; none where the cluster does not say."""
    connection = Connection(
        getattr(options, "kubeconfig", ""), getattr(options, "context", ""), TIMEOUT
    )
    api = KubectlApi(connection)
    try:
        namespace = getattr(options, "namespace", "") or api.default_namespace()
        found = api.list(resource, namespace)
    except PluginError:
        return []
    return [name for each in found if (name := each["metadata"]["name"]).startswith(prefix)]
