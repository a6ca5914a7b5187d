"""Writes images in the OCI layout that containerd imports."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
# A fixed time, so that the same content gives the same digests.
CREATED = "1970-01-01T00:00:00Z"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Layer:
    """An uncompressed layer: its digest is also its diff id."""

    digest: str
    size_bytes: int


@dataclass(frozen=True)
class ImageConfig:
    """What a container of an image runs, and as whom."""

    architecture: str
    user: str = ""
    env: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_folder: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def digest_of(data: bytes) -> str:
    """OCI digest of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def chain_id(diff_ids: Sequence[str]) -> str:
    """Name of the stack of layers, as containerd names its unpacked snapshots."""
    chain = diff_ids[0]
    for diff_id in diff_ids[1:]:
        chain = digest_of(f"{chain} {diff_id}".encode())
    return chain


def image_blobs(config: ImageConfig, layers: Sequence[Layer]) -> tuple[bytes, bytes]:
    """Config and manifest of an image."""
    settings: dict[str, Any] = {
        "User": config.user,
        "Env": list(config.env),
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "WorkingDir": config.working_folder,
        "Labels": dict(config.labels),
    }
    config_blob = _json(
        {
            "created": CREATED,
            "architecture": config.architecture,
            "os": "linux",
            "config": {key: value for key, value in settings.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
    )
    manifest_blob = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(CONFIG_TYPE, digest_of(config_blob), len(config_blob)),
            "layers": [_descriptor(LAYER_TYPE, layer.digest, layer.size_bytes) for layer in layers],
        }
    )
    return config_blob, manifest_blob


def archive(
    reference: str, config: ImageConfig, layers: Sequence[Layer], layer_data: Mapping[str, bytes]
) -> bytes:
    """Pack an OCI layout as a tar stream; layers that containerd already holds may be left out."""
    config_blob, manifest_blob = image_blobs(config, layers)
    entry = {
        **_descriptor(MANIFEST_TYPE, digest_of(manifest_blob), len(manifest_blob)),
        "annotations": {"io.containerd.image.name": reference},
    }
    index = _json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]})
    blobs = {digest_of(blob): blob for blob in (config_blob, manifest_blob)} | dict(layer_data)
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": index}
    files |= {
        f"blobs/sha256/{digest.removeprefix('sha256:')}": blob for digest, blob in blobs.items()
    }
    return _tar({name: (data, 0o644) for name, data in files.items()})


def files_layer(files: Mapping[str, Path]) -> bytes:
    """A layer with some executable files, owned by root."""
    return _tar({name: (path.read_bytes(), 0o755) for name, path in files.items()})


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, (data, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _descriptor(media_type: str, digest: str, size_bytes: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size_bytes}


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
