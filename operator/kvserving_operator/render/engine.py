"""An engine, resolved: the spec's fields, and the operator's choice for what they leave open.

The choice is recorded with the rendered template (see `revisions.py`), so that another operator's
choice changes no pod.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kvserving_operator.api.v1alpha1 import Accelerator, KVCacheDType, KVServingSpec, Switch
from kvserving_operator.render.version import EngineVersion, parse_version, version_of_image
from kvserving_operator.settings import Settings

MODELS_MOUNT = "/models"
CACHE_MOUNT = "/cache"


@dataclass(frozen=True)
class Engine:
    """One KVServing's engine, ready to be rendered."""

    served_name: str
    spec: KVServingSpec
    image: str
    version: EngineVersion | None
    settings: Settings
    tried: tuple[KVCacheDType, ...] = ()
    """Formats that it may be switched to while it serves, so that its blocks have to allow them."""

    @property
    def plugin(self) -> bool:
        """Whether our plugin runs inside it."""
        return self.spec.engine.plugin is Switch.ENABLED

    @property
    def gpus(self) -> int:
        """GPUs of one pod."""
        if self.spec.engine.accelerator is not Accelerator.NVIDIA:
            return 0
        return self.spec.engine.parallelism.tensor * self.spec.engine.parallelism.pipeline

    @property
    def model_path(self) -> str:
        """What `vllm serve` is told to load."""
        scheme, _, rest = self.spec.model.uri.partition("://")
        if scheme == "pvc":
            return f"{MODELS_MOUNT}/{rest.partition('/')[2]}".rstrip("/")
        return rest

    @property
    def model_claim(self) -> str | None:
        """PersistentVolumeClaim that holds the model, None where there is none."""
        scheme, _, rest = self.spec.model.uri.partition("://")
        return rest.partition("/")[0] if scheme == "pvc" else None

    @property
    def downloads(self) -> bool:
        """Whether the engine fetches the model from a hub itself."""
        return self.spec.model.uri.startswith("hf://")


def resolve(
    name: str,
    spec: KVServingSpec,
    settings: Settings,
    pinned_image: str | None,
    tried: Iterable[KVCacheDType] = (),
) -> Engine:
    """Settle image and version: the spec's, else those in use, else the operator's default."""
    default = {
        Accelerator.CPU: settings.engine_image_cpu,
        Accelerator.NVIDIA: settings.engine_image_nvidia,
    }[spec.engine.accelerator]
    image = spec.engine.image or pinned_image or default
    version = parse_version(spec.engine.version) if spec.engine.version else None
    version = version or version_of_image(image)
    if version is None and spec.engine.plugin is Switch.ENABLED:
        # Images with the plugin are built for the operator's engine version.
        version = parse_version(settings.engine_version)
    return Engine(
        served_name=spec.model.name or name,
        spec=spec,
        image=image,
        version=version,
        settings=settings,
        tried=tuple(tried),
    )
