"""The probe set of a KVServing: a user's own, or the built-in one."""

import base64
import binascii
from dataclasses import dataclass, replace

from kvserving_operator.api.v1alpha1 import KVServing, ProbeSetKind, ProbeSetReference
from kvserving_operator.cluster import Cluster
from kvserving_operator.kinds import Kind, Object
from kvserving_tuner.errors import ProbeSetError
from kvserving_tuner.probes.prompts import Prompt, read_prompts

FIELD = "spec.quality.probeSet"


@dataclass(frozen=True)
class ProbeSet:
    """A user's prompts, what is wrong with them, or neither: then the built-in set is used."""

    prompts: tuple[Prompt, ...] = ()
    problem: str = ""


async def read_probe_set(cluster: Cluster, serving: KVServing) -> ProbeSet:
    """Probe set that a KVServing names."""
    reference = serving.spec.quality.probe_set
    if reference is None:
        return ProbeSet()
    kind = Kind.Secret if reference.kind is ProbeSetKind.SECRET else Kind.ConfigMap
    namespace = serving.metadata.namespace
    body = await cluster.get(kind, namespace, reference.name)
    if body is None:
        where = f"{kind.name} {reference.name}"
        return ProbeSet(problem=f"{FIELD}: {where} does not exist in namespace {namespace}")
    return parse_probe_set(reference, body)


def parse_probe_set(reference: ProbeSetReference, body: Object) -> ProbeSet:
    """Prompts in an object's data; of a Secret no problem tells more than a line's number."""
    data, secret = body.get("data") or {}, reference.kind is ProbeSetKind.SECRET
    where = f"{FIELD}: {reference.kind} {reference.name}"
    if reference.key not in data:
        known = "" if secret else f", expected one of {', '.join(sorted(data)) or 'none'}"
        return ProbeSet(problem=f"{where}: no key {reference.key}{known}")
    text = str(data[reference.key])
    try:
        if secret:
            text = base64.b64decode(text, validate=True).decode()
        prompts = read_prompts(text)
    except (binascii.Error, UnicodeDecodeError):
        return ProbeSet(problem=f"{where}: key {reference.key}: expected text in UTF-8")
    except ProbeSetError as error:
        told = f"{str(error).partition(':')[0]} is no prompt" if secret else str(error)
        return ProbeSet(problem=f"{where}: {told}")
    if secret:
        # Their names would be told wherever one of them is at fault.
        prompts = tuple(
            replace(prompt, name=f"prompt {number}") for number, prompt in enumerate(prompts, 1)
        )
    return ProbeSet(prompts)
