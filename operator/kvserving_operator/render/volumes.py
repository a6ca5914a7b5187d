"""Where an engine reads its model, keeps compiled kernels, and exchanges tensors."""

from typing import Any

from kvserving_operator.hashing import content_hash
from kvserving_operator.render.engine import CACHE_MOUNT, MODELS_MOUNT, Engine


def volumes(engine: Engine) -> list[dict[str, Any]]:
    """Volumes of an engine pod."""
    found = [*model_volumes(engine), _cache(engine), {"name": "tmp", "emptyDir": {}}]
    shm = {"medium": "Memory", "sizeLimit": engine.settings.shm_size}
    return [*found, {"name": "shm", "emptyDir": shm}]


def volume_mounts(engine: Engine) -> list[dict[str, Any]]:
    """Mounts of the engine container."""
    return [
        *model_mounts(engine),
        {"name": "cache", "mountPath": CACHE_MOUNT},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  a path inside the container
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]


def model_volumes(engine: Engine) -> list[dict[str, Any]]:
    """Volume with the model, where it comes from a claim."""
    if engine.model_claim is None:
        return []
    claim = {"claimName": engine.model_claim, "readOnly": True}
    return [{"name": "models", "persistentVolumeClaim": claim}]


def model_mounts(engine: Engine) -> list[dict[str, Any]]:
    """Mount of that volume."""
    if engine.model_claim is None:
        return []
    return [{"name": "models", "mountPath": MODELS_MOUNT, "readOnly": True}]


def cache_folder(engine: Engine) -> str:
    """Folder for compiled code, its own for whatever changes what is compiled.

    One claim may be shared by many servings and outlive engine upgrades: code of another engine,
    accelerator or shape must never be picked up.
    """
    spec = engine.spec
    key = content_hash(
        [
            engine.image,
            str(engine.version),
            spec.engine.accelerator.value,
            spec.model.uri,
            spec.model.revision,
            spec.kv_cache.dtype.value,
            spec.engine.weight_quantization,
            spec.engine.parallelism.tensor,
            spec.engine.parallelism.pipeline,
            spec.engine.max_model_len,
            spec.engine.max_num_seqs,
            spec.engine.max_num_batched_tokens,
            spec.engine.block_size,
        ]
    )
    return f"{CACHE_MOUNT}/{key}"


def _cache(engine: Engine) -> dict[str, Any]:
    cache = engine.spec.engine.compile_cache
    if cache is None:
        return {"name": "cache", "emptyDir": {}}
    return {"name": "cache", "persistentVolumeClaim": {"claimName": cache.claim_name}}
