"""What a pod may do on its node: as little as the restricted Pod Security standard allows."""

from typing import Any

ENGINE_UID = 65532
"""User and group of the engine images: no account, no home."""


def pod_security(owns_volumes: bool) -> dict[str, Any]:
    """Security context of a pod; one that writes into a claim needs to own the claim's files."""
    context: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": ENGINE_UID,
        "runAsGroup": ENGINE_UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if owns_volumes:
        context["fsGroup"] = ENGINE_UID
        # Changing owners of a large compile cache at every start would take minutes.
        context["fsGroupChangePolicy"] = "OnRootMismatch"
    return context


def container_security() -> dict[str, Any]:
    """Security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        # Caches, home and /tmp are volumes of the pod.
        "readOnlyRootFilesystem": True,
        "privileged": False,
    }
