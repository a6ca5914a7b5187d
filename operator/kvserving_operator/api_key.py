"""The key that users of a KVServing send, which the operator's own questions need too."""

import base64
import binascii

from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.cluster import Cluster
from kvserving_operator.kinds import Kind

FIELD = "spec.apiKeyRef"


async def read_api_key(cluster: Cluster, serving: KVServing) -> tuple[str | None, str]:
    """Key, or None; and what is wrong where there is to be one. The key itself is never told."""
    reference = serving.spec.api_key_ref
    if reference is None:
        return None, ""
    namespace = serving.metadata.namespace
    secret = await cluster.get(Kind.Secret, namespace, reference.name)
    where = f"Secret {reference.name}"
    if secret is None:
        return None, f"{FIELD}.name: {where} does not exist in namespace {namespace}"
    encoded = (secret.get("data") or {}).get(reference.key)
    if not encoded:
        return None, f"{FIELD}.key: {where} has no key {reference.key}, or it is empty"
    try:
        key = base64.b64decode(encoded, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        key = ""
    if not key.isprintable() or not key or key != key.strip():
        problem = "expected printable ASCII without spaces or a newline at its ends"
        return None, f"{FIELD}.key: {where}: {reference.key}: {problem}"
    return key, ""
