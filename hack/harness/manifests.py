"""Manifests that the demo and the tests apply besides the examples."""

from collections.abc import Mapping
from typing import Any

# The local cluster's volumes of this class all hold the same read-only folder of models.
MODELS_CLAIM: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "models"},
    "spec": {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "kvserving-models",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


def tiny_serving(name: str, **spec: Any) -> dict[str, Any]:
    """Give a KVServing of a random-weight tiny Llama; `spec` entries replace the defaults."""
    defaults: dict[str, Any] = {
        "model": {"name": "tiny", "uri": "pvc://models/tiny-llama"},
        "replicas": 1,
        "engine": tiny_engine(),
        "tuning": {"mode": "Off"},
        "podTemplate": {
            # Without a request, Kubernetes gives a pod what all others leave of the processors.
            "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}},
            # So small a model gains nothing by a second thread, and threads that wait for each
            # other take the processors from everything else here.
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        },
    }
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVServing",
        "metadata": {"name": name},
        "spec": defaults | spec,
    }


def tiny_engine(**changes: Any) -> dict[str, Any]:
    """Give `spec.engine` of the tiny Llama; `changes` replace the defaults."""
    defaults: dict[str, Any] = {
        "accelerator": "CPU",
        "maxModelLen": 1024,
        "maxNumSeqs": 16,
        "maxNumBatchedTokens": 1024,
        "kvCacheMemory": "64Mi",
        "extraArgs": ["--enforce-eager"],
    }
    return defaults | changes
