"""Waiting for a KVServing, and asking the model it serves."""

from typing import Any

import httpx

from harness.kube import KVSERVING, Kube, condition, wait_for


def wait_ready(
    kube: Kube, name: str, namespace: str, timeout_seconds: float = 300
) -> dict[str, Any]:
    """Wait until a KVServing is Ready and settled for its present generation; give it."""

    def settled() -> dict[str, Any] | None:
        serving = kube.get(KVSERVING, name, namespace)
        if serving is None:
            return None
        generation = serving["metadata"]["generation"]
        ready, progressing = condition(serving, "Ready"), condition(serving, "Progressing")
        fresh = progressing.get("observedGeneration") == generation
        done = ready.get("status") == "True" and progressing.get("status") == "False" and fresh
        return serving if done else None

    return wait_for(settled, f"kvserving {namespace}/{name} is Ready", timeout_seconds)


def wait_condition(
    kube: Kube,
    name: str,
    namespace: str,
    kind: str,
    status: str,
    reason: str | None = None,
    timeout_seconds: float = 120,
) -> dict[str, Any]:
    """Wait until a KVServing's condition has a status (and a reason); give the condition."""

    def look() -> dict[str, Any] | None:
        found = condition(kube.get(KVSERVING, name, namespace), kind)
        right = found.get("status") == status and reason in (None, found.get("reason"))
        return found if right else None

    what = f"condition {kind}={status} {reason or ''} of kvserving {namespace}/{name}"
    return wait_for(look, what, timeout_seconds)


def engine_pods(kube: Kube, name: str, namespace: str) -> list[dict[str, Any]]:
    """Give the engine pods of a KVServing that are not on their way out."""
    pods = kube.objects("pods", namespace, f"kvserving.dev/serving={name},kvserving.dev/track")
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def complete(
    url: str, model: str, prompt: str = "Hello", max_tokens: int = 4, api_key: str = ""
) -> str:
    """Ask for a completion and give its text."""
    answer = httpx.post(
        f"{url}/v1/completions",
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        json={"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0},
        timeout=60,
    )
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])
