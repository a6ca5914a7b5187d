"""Finding the object that a user means, and saying what is near where there is none."""

from collections.abc import Iterable
from difflib import get_close_matches

from kvserving_kubectl.api import Api, Object
from kvserving_kubectl.errors import NotFound, PluginError, UsageError
from kvserving_kubectl.resources import KVSERVINGS, KVTRIALS, Resource
from kvserving_operator.api.v1alpha1 import TrialState

NEAR = 3


def serving(api: Api, namespace: str, name: str) -> Object:
    """One KVServing; NotFound with names that look alike, or that are the same elsewhere."""
    return _one(api, KVSERVINGS, namespace, name)


def trial(api: Api, namespace: str, name: str) -> Object:
    """One KVTrial; NotFound with names that look alike."""
    return _one(api, KVTRIALS, namespace, name)


def trials_of(api: Api, namespace: str, name: str) -> list[Object]:
    """KVTrials of a KVServing, oldest first."""
    return of_serving(api.list(KVTRIALS, namespace), name)


def of_serving(trials: Iterable[Object], name: str) -> list[Object]:
    """Those of these KVTrials that are a KVServing's, oldest first."""
    found = [each for each in trials if each["spec"]["servingRef"]["name"] == name]
    return sorted(found, key=lambda each: str(each["metadata"].get("creationTimestamp", "")))


def is_open(trial: Object) -> bool:
    """Whether a KVTrial has not ended."""
    state = (trial.get("status") or {}).get("state")
    return bool(state != TrialState.FINISHED.value)


def under_way(trials: Iterable[Object]) -> Object | None:
    """The trial that runs; else the oldest that waits; None where there is none."""
    waiting = [each for each in trials if is_open(each)]
    begun = [
        each
        for each in waiting
        if (each.get("status") or {}).get("state") not in (None, TrialState.PENDING.value)
    ]
    return next(iter([*begun, *waiting]), None)


def chosen(api: Api, namespace: str, name: str, wanted: str) -> Object | None:
    """The open trial that was named; without a name the one under way, None where there is none."""
    serving(api, namespace, name)
    if not wanted:
        return under_way(trials_of(api, namespace, name))
    found = trial(api, namespace, wanted)
    its = found["spec"]["servingRef"]["name"]
    if its != name:
        raise UsageError(f"--trial: expected a trial of {name}, got {wanted}, which is of {its}")
    if not is_open(found):
        verdict = found["status"].get("verdict", "no verdict")
        raise UsageError(f"--trial: {wanted} has ended: {verdict}")
    return found


def _one(api: Api, resource: Resource, namespace: str, name: str) -> Object:
    if not namespace:
        raise UsageError("--all-namespaces: expected no name beside it")
    try:
        return api.get(resource, namespace, name)
    except NotFound:
        raise NotFound(
            resource.singular, name, namespace, _near(api, resource, namespace, name)
        ) from None


def _near(api: Api, resource: Resource, namespace: str, name: str) -> list[str]:
    """Names here that look alike, and places where the very name is."""
    try:
        here = [each["metadata"]["name"] for each in api.list(resource, namespace)]
    except PluginError:
        return []
    found = get_close_matches(name, here, n=NEAR, cutoff=0.5)
    try:
        everywhere = api.list(resource)
    except PluginError:
        # Who may look into one namespace alone gets no hint about others.
        return found
    return (
        found
        + [
            f"{name} in namespace {each['metadata']['namespace']}"
            for each in everywhere
            if each["metadata"]["name"] == name
        ][:NEAR]
    )
