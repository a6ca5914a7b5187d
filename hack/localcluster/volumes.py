"""PersistentVolumes made in advance, and their return to the pool once their claims are gone."""

from collections.abc import Iterator
from string import Template
from typing import Any

from localcluster.kubeapi import KubeApi
from localcluster.layout import Layout

POOL_SIZE = 40
POOL_LABEL = "kvserving.dev/pool"
# The engine image's user, which writes the compile caches.
ENGINE_USER = 65532
VOLUMES_PATH = "/api/v1/persistentvolumes"


def volume_documents(layout: Layout) -> Iterator[str]:
    """A manifest per volume."""
    template = Template((layout.manifests / "volume.yaml").read_text())
    pools = (
        ("kvserving-models", layout.models, "ReadOnlyMany"),
        ("kvserving-cache", layout.compile_caches, "ReadWriteOnce, ReadWriteMany"),
    )
    for class_name, folder, access_modes in pools:
        for number in range(POOL_SIZE):
            yield template.substitute(
                name=f"{class_name}-{number:02d}",
                class_name=class_name,
                folder=folder,
                access_modes=access_modes,
                node_name=layout.node_name,
            )


def released(volumes: Any) -> list[str]:
    """Names of pool volumes whose claim is gone, from the API's list."""
    return [
        item["metadata"]["name"]
        for item in volumes["items"]
        if POOL_LABEL in item["metadata"].get("labels", {})
        and item.get("status", {}).get("phase") == "Released"
    ]


def reclaim(api: KubeApi) -> int:
    """Free released volumes for new claims; their number."""
    names = released(api.get(f"{VOLUMES_PATH}?labelSelector={POOL_LABEL}"))
    for name in names:
        api.merge(f"{VOLUMES_PATH}/{name}", {"spec": {"claimRef": None}})
    return len(names)
