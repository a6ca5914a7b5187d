"""KVServings for tests, as the API sends them and parsed."""

from collections.abc import Mapping
from typing import Any

from kvserving_operator.api.v1alpha1 import KVServing, KVServingSpec, parse_serving
from kvserving_operator.render.names import ServingRef

NAMESPACE = "team"
NAME = "chat"
IMAGE = "ghcr.io/kvserving/engine-cpu:0.32.0"
REF = ServingRef(NAMESPACE, NAME, "serving-uid")


def serving_body(
    generation: int = 1, annotations: Mapping[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """Give a KVServing as the API sends it; `spec` entries replace the defaults."""
    defaults: dict[str, Any] = {
        "model": {"name": "tiny", "uri": "pvc://models/tiny-llama"},
        "replicas": 1,
        "engine": engine_spec(),
        "tuning": {"mode": "Auto"},
    }
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVServing",
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "uid": "serving-uid",
            "generation": generation,
            "annotations": dict(annotations or {}),
        },
        "spec": defaults | spec,
    }


def engine_spec(**changes: Any) -> dict[str, Any]:
    """Give `spec.engine`; `changes` replace the defaults."""
    return {"accelerator": "CPU", "maxNumSeqs": 16, "kvCacheMemory": "64Mi"} | changes


def serving(**spec: Any) -> KVServing:
    """Give a parsed KVServing."""
    return parse_serving(serving_body(**spec))


def spec_of(**spec: Any) -> KVServingSpec:
    """Give a parsed spec."""
    return serving(**spec).spec
