"""Routes as they are stored, and as they are read back."""

from typing import Any

import pytest

from kvserving_operator.api.v1alpha1 import RoutingSpec, SplitBy
from kvserving_operator.render.route import parent, route, session_policy
from kvserving_operator.traffic.sessions import keeping
from kvserving_operator.traffic.view import (
    ENVOY_GATEWAY,
    RouteView,
    covers,
    policy_problem,
    ready_endpoints,
    route_view,
)
from operatorkit.specs import NAME, NAMESPACE, REF

ROUTING = RoutingSpec.model_validate({"gatewayRef": {"name": "gw", "namespace": "edge"}})


def test_both_arms_have_their_weight_and_no_answer_ends_by_time() -> None:
    spec = route(REF, ROUTING, 5, clusters=False)["spec"]
    (rule,) = spec["rules"]
    assert {"request": "0s"} == rule["timeouts"]
    weights = [(each["name"], each["weight"]) for each in rule["backendRefs"]]
    assert [(f"{NAME}-stable", 95), (f"{NAME}-candidate", 5)] == weights
    assert not any("filters" in each for each in rule["backendRefs"])
    assert "edge" == spec["parentRefs"][0]["namespace"]


def test_users_do_not_reach_what_is_not_theirs() -> None:
    (match,) = route(REF, ROUTING, 0, clusters=False)["spec"]["rules"][0]["matches"]
    assert {"type": "PathPrefix", "value": "/v1"} == match["path"]


def test_tracks_of_their_own_clusters_are_named_in_answers() -> None:
    backends = route(REF, ROUTING, 5, clusters=True)["spec"]["rules"][0]["backendRefs"]
    named = [b["filters"][0]["responseHeaderModifier"]["set"][0]["value"] for b in backends]
    assert ["stable", "candidate"] == named


def test_the_listener_and_the_names_pass_through() -> None:
    routing = RoutingSpec.model_validate(
        {"gatewayRef": {"name": "gw", "sectionName": "web"}, "hostnames": ["chat.example"]}
    )
    spec = route(REF, routing, 0, clusters=False)["spec"]
    assert ("web", NAMESPACE) == (
        spec["parentRefs"][0]["sectionName"],
        spec["parentRefs"][0]["namespace"],
    )
    assert ["chat.example"] == spec["hostnames"]


def test_the_policy_hashes_the_header_of_this_route() -> None:
    spec = session_policy(REF, "x-user")["spec"]
    assert ("HTTPRoute", NAME) == (spec["targetRefs"][0]["kind"], spec["targetRefs"][0]["name"])
    assert [{"name": "x-user"}] == spec["loadBalancer"]["consistentHash"]["headers"]


def test_without_an_answer_it_is_not_in_force() -> None:
    view = stored_view(5)
    assert (5, False, "") == (view.weight, view.accepted, view.controller)


def test_the_answer_to_another_gateway_is_none() -> None:
    assert not stored_view(5, answer(parentRef={"name": "other"})).accepted


def test_an_answer_about_an_older_version_acknowledges_nothing() -> None:
    assert stored_view(5, answer(generation=2)).acknowledged
    old = stored_view(5, answer(generation=1))
    assert (True, False) == (old.accepted, old.acknowledged)


@pytest.mark.parametrize("type", ["Accepted", "ResolvedRefs"])
def test_a_fault_is_told_in_the_controllers_words(type: str) -> None:
    fault = {"type": type, "status": "False", "reason": "NoGood", "message": "bad"}
    found = answer()
    found["conditions"] = [c for c in found["conditions"] if c["type"] != type] + [fault]
    view = stored_view(5, found)
    assert (False, "NoGood: bad") == (view.accepted, view.problem)


def answer(generation: int = 2, controller: str = ENVOY_GATEWAY, **more: Any) -> dict[str, Any]:
    accepted = {"type": "Accepted", "status": "True", "observedGeneration": generation}
    reference = {"name": "gw", "namespace": "edge"}
    return {
        "parentRef": reference,
        "controllerName": controller,
        "conditions": [accepted, {"type": "ResolvedRefs", "status": "True"}],
        **more,
    }


def stored_view(weight: int, *answers: dict[str, Any]) -> RouteView:
    stored = route(REF, ROUTING, weight, clusters=False)
    stored["metadata"]["generation"] = 2
    stored["status"] = {"parents": list(answers)}
    return route_view(REF, stored, parent(REF, ROUTING))


def test_endpoints_are_pods_that_are_ready() -> None:
    endpoints = [
        {"targetRef": {"name": "a"}, "conditions": {"ready": True}},
        {"targetRef": {"name": "b"}, "conditions": {"ready": False}},
        {"targetRef": {"name": "c"}, "conditions": {}},
        {"conditions": {"ready": True}},
    ]
    found = ready_endpoints([{"endpoints": endpoints}, {"endpoints": None}])
    assert frozenset({"a", "c"}) == found


def test_defaults_of_the_api_server_are_no_difference() -> None:
    wanted = {"a": [{"b": 1}], "c": "d"}
    assert covers({"a": [{"b": 1, "more": 2}], "c": "d", "e": 0}, wanted)
    assert not covers({"a": [{"b": 1}, {"b": 2}], "c": "d"}, wanted)
    assert not covers({"a": [{"b": 2}], "c": "d"}, wanted)
    assert not covers({"a": [{"b": 1}]}, wanted)


def test_a_policy_that_is_refused_says_why() -> None:
    refusal = {"type": "Accepted", "status": "False", "reason": "Invalid", "message": "no"}
    assert "no" == policy_problem({"status": {"ancestors": [{"conditions": [refusal]}]}})
    assert "" == policy_problem({"status": {"ancestors": [{"conditions": []}]}})
    assert "" == policy_problem({})


@pytest.mark.parametrize(
    ("header", "split_by", "controller", "why_not"),
    [
        (None, SplitBy.SESSION, ENVOY_GATEWAY, "names no session"),
        ("x-user", SplitBy.REQUEST, ENVOY_GATEWAY, "ab.splitBy is Request"),
        ("x-user", SplitBy.SESSION, "", "no controller"),
        ("x-user", SplitBy.SESSION, "example.com/other", "example.com/other cannot keep them"),
        ("x-user", SplitBy.SESSION, ENVOY_GATEWAY, ""),
    ],
)
def test_sessions_are_kept_where_that_is_asked_for_and_possible(
    header: str | None, split_by: SplitBy, controller: str, why_not: str
) -> None:
    routing = ROUTING.model_copy(update={"session_header": header})
    found = keeping(routing, split_by, RouteView(controller=controller))
    assert why_not in found.why_not
    assert bool(why_not) != bool(found.header)
