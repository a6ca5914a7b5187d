"""The images of this project, each from its real Dockerfile."""

from collections.abc import Iterable
from dataclasses import dataclass

from localcluster.builder import ImageBuilder
from localcluster.dockerfile import Recipe, parse
from localcluster.errors import LocalClusterError
from localcluster.layout import Layout


@dataclass(frozen=True)
class Image:
    """One image the local cluster can build and load."""

    name: str
    reference: str
    dockerfile: str


ENGINE = Image("engine", "ghcr.io/kvserving/engine-cpu:0.32.0", "images/engine-cpu/Dockerfile")
IMAGES: tuple[Image, ...] = (
    ENGINE,
    Image("operator", "ghcr.io/kvserving/operator:0.1.0", "images/operator/Dockerfile"),
    Image(
        "prometheus",
        "docker.io/local/prometheus:dev",
        "hack/localcluster/images/prometheus/Dockerfile",
    ),
)
ALL = "all"


def chosen_images(names: Iterable[str]) -> list[Image]:
    """Images by name; `all`, or no name, stands for every one."""
    wanted = set(names) or {ALL}
    known = {image.name for image in IMAGES}
    if unknown := wanted - known - {ALL}:
        raise LocalClusterError(
            f"image {sorted(unknown)[0]}: expected one of {ALL}, {', '.join(known)}"
        )
    return [image for image in IMAGES if ALL in wanted or image.name in wanted]


def recipe_of(image: Image, layout: Layout) -> Recipe:
    """What an image's Dockerfile says."""
    return parse((layout.repository / image.dockerfile).read_text(), {})


def load(builder: ImageBuilder, images: Iterable[Image], layout: Layout) -> list[str]:
    """Build and load what is missing or out of date; the references that changed."""
    changed = [
        image.reference
        for image in images
        if builder.build(image.reference, recipe_of(image, layout), layout.repository)
    ]
    if changed:
        builder.tidy((recipe_of(image, layout) for image in IMAGES), layout.repository)
    return changed
