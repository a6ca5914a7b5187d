"""Image archives and the names of layer stacks."""

import io
import json
import tarfile
from pathlib import Path

from localcluster.oci import ImageConfig, Layer, archive, chain_id, digest_of, files_layer


def test_a_chain_id_follows_the_specification() -> None:
    # ChainID(L0) = L0; ChainID(L0|L1) = SHA256(ChainID(L0) + " " + L1)
    first, second = digest_of(b"one"), digest_of(b"two")
    assert chain_id([first]) == first
    assert chain_id([first, second]) == digest_of(f"{first} {second}".encode())
    assert chain_id([first, second]) != chain_id([second, first])


def test_an_archive_is_a_complete_oci_layout(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    layer = files_layer({"pause": program})
    digest = digest_of(layer)
    config = ImageConfig("amd64", user="65532", entrypoint=("/pause",))
    data = archive("docker.io/local/pause:1", config, [Layer(digest, len(layer))], {digest: layer})

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        blobs = {name: file.read() for name, file in files.items() if file is not None}
    index = json.loads(blobs["index.json"])
    entry = index["manifests"][0]
    assert entry["annotations"] == {"io.containerd.image.name": "docker.io/local/pause:1"}

    def blob(descriptor: dict[str, object]) -> bytes:
        found = blobs[f"blobs/sha256/{str(descriptor['digest']).removeprefix('sha256:')}"]
        assert digest_of(found) == descriptor["digest"]
        assert len(found) == descriptor["size"]
        return found

    manifest = json.loads(blob(entry))
    image = json.loads(blob(manifest["config"]))
    assert image["rootfs"]["diff_ids"] == [digest]
    assert image["config"] == {"User": "65532", "Entrypoint": ["/pause"]}
    with tarfile.open(fileobj=io.BytesIO(blob(manifest["layers"][0]))) as tar:
        assert tar.getmember("pause").mode == 0o755


def test_the_same_image_has_the_same_digests() -> None:
    config = ImageConfig("amd64", env=("A=1",))
    layers = [Layer(digest_of(b"x"), 0)]
    assert archive("a:1", config, layers, {}) == archive("a:1", config, layers, {})
