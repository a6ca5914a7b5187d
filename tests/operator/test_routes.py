"""Trials behind a gateway: tracks, weights and route in a cluster in memory."""

from typing import Any

import pytest

from kvserving_operator.kinds import Kind
from operatorkit.gateway import ROUTING, Proxy
from operatorkit.specs import NAME, NAMESPACE, engine_spec
from operatorkit.trials import only_trial, put_policy, serve
from operatorkit.world import World, set_condition

STEPS = {"steps": [5, 25, 50], "minRequests": 4, "minDurationSeconds": 20}
ROUTED: dict[str, Any] = {"rollbackPolicyRef": {"name": "policy"}, "routing": ROUTING}
STICKY: dict[str, Any] = ROUTED | {"routing": ROUTING | {"sessionHeader": "x-user"}}


@pytest.fixture
def proxy(world: World) -> Proxy:
    return Proxy(world.cluster)


async def ready(world: World, replicas: int = 2, **spec: Any) -> None:
    put_policy(world, ab=STEPS)
    world.put(**{"replicas": replicas, **ROUTED, **spec})
    await world.settle()
    await world.tick()


def edit(world: World, dtype: str, replicas: int = 2, **spec: Any) -> None:
    world.put(**{"replicas": replicas, **ROUTED, **spec}, kvCache={"dtype": dtype})


async def until_weight(world: World, proxy: Proxy, weight: int, looks: int = 60) -> None:
    for _ in range(looks):
        await serve(world)
        if proxy.weight == weight:
            return
    raise AssertionError(f"no weight of {weight} after {proxy.weights}: {only_trial(world)}")


def as_before(world: World, proxy: Proxy, pods: int = 2) -> None:
    """Everything leads to one arm, as without a trial."""
    assert 0 == proxy.weight
    assert [] == proxy.arm("candidate")
    assert pods == len(proxy.arm("stable"))


async def test_a_gateway_gets_a_route_with_two_arms(world: World, proxy: Proxy) -> None:
    await ready(world)
    as_before(world, proxy)
    assert {f"{NAME}-stable", f"{NAME}-candidate"} <= set(world.cluster.of(Kind.Service))
    routed = world.condition("Routed")
    assert ("True", "RouteAccepted") == (routed["status"], routed["reason"])
    assert f"Gateway {NAMESPACE}/gw" in routed["message"]
    traffic = world.status["traffic"]
    assert ("Route", 0, "NotKept") == (
        traffic["split"],
        traffic["candidateWeightPercent"],
        traffic["sessions"],
    )
    assert "sessionHeader" in traffic["message"]


async def test_without_one_nothing_of_it_is_touched(world: World) -> None:
    world.cluster.refused = dict.fromkeys(
        (Kind.HTTPRoute, Kind.BackendTrafficPolicy, Kind.EndpointSlice), 403
    )
    world.put()
    await world.settle()
    assert "Serving" == world.status["reason"]
    assert "traffic" not in world.status
    assert "NoGateway" == world.condition("Routed")["reason"]
    assert {NAME, f"{NAME}-engines"} == set(world.cluster.of(Kind.Service))


async def test_a_settled_route_changes_nothing_between_resyncs(world: World, proxy: Proxy) -> None:
    await ready(world)
    await world.tick(61)
    before = list(world.cluster.changes)
    for _ in range(10):
        await world.tick()
    assert before == world.cluster.changes


@pytest.mark.parametrize("spec", [ROUTED, STICKY], ids=["by request", "by session"])
async def test_a_good_format_takes_its_share_step_by_step(
    world: World, proxy: Proxy, spec: dict[str, Any]
) -> None:
    await ready(world, **spec)
    edit(world, "int8", **spec)
    for weight in (5, 25, 50):
        await until_weight(world, proxy, weight)
        assert 1 == len(proxy.arm("candidate"))
        assert weight == world.status["traffic"]["candidateWeightPercent"]
    await serve(world, 120)
    assert "Promoted" == only_trial(world)["verdict"]
    as_before(world, proxy)
    assert [] == proxy.faults
    steps = [weight for weight in proxy.weights if weight not in (0, 1)]
    assert [5, 25, 50] == steps
    assert 4 == len(world.said("TrafficShifted")[:4])
    assert "candidates get 5 % of the requests, 0 % before" in world.said("TrafficShifted")[0]
    assert "those 5 % were 50.0 %" in world.said("TrafficShifted")[1]
    shown = only_trial(world)
    assert 2 == shown["step"]


async def test_a_pod_leaves_the_others_before_it_takes_a_change(world: World, proxy: Proxy) -> None:
    await ready(world)
    edit(world, "int8")
    seen = []

    def note() -> None:
        for name in proxy.arm("stable"):
            address = world.engine_pods()[name]["status"]["podIP"]
            seen.append(world.engines.dtypes.get(address, "bfloat16"))

    for _ in range(30):
        await serve(world)
        note()
        if proxy.weight == 25:
            break
    assert {"bfloat16"} == set(seen)


async def test_a_format_that_fails_loses_its_share_at_once(world: World, proxy: Proxy) -> None:
    await ready(world)
    edit(world, "int8")
    await until_weight(world, proxy, 5)
    world.engines.worse["int8"] = 0.4
    for _ in range(40):
        await serve(world)
        if only_trial(world).get("state") != "Running":
            break
    assert 0 == proxy.weight
    await serve(world, 2)
    assert "RolledBack" == only_trial(world)["verdict"]
    as_before(world, proxy)
    assert {"bfloat16"} == set(world.engines.dtypes.values())
    assert [] == proxy.faults


async def test_requests_that_come_past_the_route_hold_the_trial(world: World, proxy: Proxy) -> None:
    # Both engines finish alike, as where clients ask the Service and not the gateway.
    await ready(world)
    put_policy(world, ab=STEPS | {"minDurationSeconds": 200})
    edit(world, "int8")
    await until_weight(world, proxy, 5)
    await serve(world, 60)
    status = only_trial(world)
    assert "Running" == status["state"]
    assert "holds: traffic is not what was promised" in status["message"]
    assert "50 % of the requests instead of 5 %" in status["message"]
    assert "instead of 5 %" in world.status["traffic"]["message"]
    assert 5 == proxy.weight
    assert not world.said("TrialRolledBack")


async def test_shares_of_kept_sessions_are_not_checked(world: World, proxy: Proxy) -> None:
    await ready(world, **STICKY)
    put_policy(world, ab=STEPS | {"minDurationSeconds": 200})
    edit(world, "int8", **STICKY)
    await until_weight(world, proxy, 5)
    await serve(world, 60)
    assert "Kept" == world.status["traffic"]["sessions"]
    assert proxy.weight > 5


async def test_an_engine_that_cannot_go_back_gets_no_share(world: World, proxy: Proxy) -> None:
    await ready(world)
    edit(world, "int8")
    await until_weight(world, proxy, 25)
    (name,) = proxy.arm("candidate")
    world.engines.failing[world.engine_pods()[name]["status"]["podIP"]] = "no memory"
    world.put(replicas=2, **ROUTED)
    await serve(world, 4)
    assert (0, [name]) == (proxy.weight, proxy.arm("candidate"))
    world.remove(name)
    await world.settle(3)
    as_before(world, proxy)


async def test_one_engine_has_no_split(world: World, proxy: Proxy) -> None:
    await ready(world, replicas=1)
    edit(world, "int8", replicas=1)
    while not (world.cluster.of(Kind.KVTrial) and only_trial(world).get("state") == "Running"):
        await serve(world)
    stored = world.cluster.of(Kind.ConfigMap)[f"{NAME}-state"]["data"]["tuning.json"]
    assert '"weighted":false' in stored
    await serve(world, 80)
    assert "Promoted" == only_trial(world)["verdict"]
    assert [0] == proxy.weights
    as_before(world, proxy, pods=1)


async def test_a_step_that_the_others_cannot_carry_is_raised(world: World, proxy: Proxy) -> None:
    await ready(world)
    world.engines.running = 12
    await serve(world, 6)
    edit(world, "int8")
    await until_weight(world, proxy, 50)
    traffic = world.status["traffic"]
    assert (5, 50) == (traffic["stepPercent"], traffic["candidateWeightPercent"])
    assert "asks for 5 %, which the pods of one side cannot carry" in traffic["message"]
    assert "cannot carry" in world.said("TrafficShifted")[0]


async def test_sessions_are_kept_by_envoy_gateway(world: World, proxy: Proxy) -> None:
    await ready(world, **STICKY)
    assert "Kept" == world.status["traffic"]["sessions"]
    (policy,) = world.cluster.of(Kind.BackendTrafficPolicy).values()
    headers = policy["spec"]["loadBalancer"]["consistentHash"]["headers"]
    assert [{"name": "x-user"}] == headers
    put_policy(world, ab=STEPS | {"splitBy": "Request"})
    await serve(world, 2)
    assert {} == world.cluster.of(Kind.BackendTrafficPolicy)
    assert "splitBy" in world.status["traffic"]["message"]
    assert [] == proxy.faults


async def test_another_controller_keeps_no_sessions_and_says_so(world: World, proxy: Proxy) -> None:
    proxy.controller = "example.com/gateway"
    await ready(world, **STICKY)
    traffic = world.status["traffic"]
    assert ("Route", "NotKept") == (traffic["split"], traffic["sessions"])
    assert "example.com/gateway" in traffic["message"]
    assert {} == world.cluster.of(Kind.BackendTrafficPolicy)


async def test_no_session_policy_without_its_kind(world: World, proxy: Proxy) -> None:
    world.cluster.refused[Kind.BackendTrafficPolicy] = 404
    await ready(world, **STICKY)
    assert "sessions are not kept: BackendTrafficPolicy: 404" in world.status["traffic"]["message"]
    edit(world, "int8", **STICKY)
    await until_weight(world, proxy, 5)


@pytest.mark.parametrize(
    ("prepare", "reason", "words"),
    [
        (lambda w, p: w.cluster.refused.update({Kind.HTTPRoute: 404}), "GatewayApiMissing", "not"),
        (lambda w, p: w.cluster.refused.update({Kind.HTTPRoute: 403}), "RouteRejected", "chart"),
        (lambda w, p: setattr(p, "controller", None), "RoutePending", "does not exist"),
        (lambda w, p: setattr(p, "refusal", "NoMatch"), "RouteNotAccepted", "NoMatch"),
    ],
    ids=["no kind", "no right", "no gateway", "refused"],
)
async def test_without_a_route_shares_are_those_of_pods(
    world: World, proxy: Proxy, prepare: Any, reason: str, words: str
) -> None:
    prepare(world, proxy)
    await ready(world)
    edit(world, "int8")
    await serve(world, 100)
    routed = world.condition("Routed")
    assert reason == routed["reason"]
    assert words in routed["message"]
    assert "Capacity" == world.status["traffic"]["split"]
    assert "Promoted" == only_trial(world)["verdict"]
    assert 2 == len(proxy.arm("stable"))
    assert not any(proxy.weights)


async def test_a_gateway_that_goes_during_a_trial_ends_the_split_and_not_the_trial(
    world: World, proxy: Proxy
) -> None:
    await ready(world)
    edit(world, "int8")
    await until_weight(world, proxy, 25)
    proxy.controller = None
    proxy.take_up()
    await serve(world, 2)
    as_before(world, proxy)
    assert "Capacity" == world.status["traffic"]["split"]
    assert "Running" == only_trial(world)["state"]
    await serve(world, 120)
    assert "Promoted" == only_trial(world)["verdict"]


async def test_a_right_that_goes_during_a_trial_leaves_the_split_as_it_is(
    world: World, proxy: Proxy
) -> None:
    await ready(world)
    edit(world, "int8")
    await until_weight(world, proxy, 25)
    world.cluster.refused[Kind.HTTPRoute] = 403
    await serve(world, 3)
    assert (25, 1) == (proxy.weight, len(proxy.arm("candidate")))
    assert "RouteRejected" == world.condition("Routed")["reason"]
    traffic = world.status["traffic"]
    assert ("Route", 25) == (traffic["split"], traffic["candidateWeightPercent"])
    world.cluster.refused.clear()
    await serve(world, 200)
    assert "Promoted" == only_trial(world)["verdict"]
    as_before(world, proxy)


@pytest.mark.parametrize("status", [403, 503])
async def test_engines_give_a_change_up_whatever_becomes_of_the_route(
    world: World, proxy: Proxy, status: int
) -> None:
    await ready(world)
    edit(world, "int8")
    await until_weight(world, proxy, 25)
    world.cluster.refused[Kind.HTTPRoute] = status
    world.put(replicas=2, **ROUTED)
    await serve(world)
    assert {"bfloat16"} == set(world.engines.dtypes.values())
    assert "RouteRejected" == world.condition("Routed")["reason"]
    world.cluster.refused.clear()
    await serve(world, 3)
    as_before(world, proxy)


async def test_pods_stay_in_their_arm_until_the_gateway_has_taken_the_weight_away(
    world: World, proxy: Proxy
) -> None:
    await ready(world)
    edit(world, "int8")
    await until_weight(world, proxy, 25)
    proxy.answers = False
    world.put(replicas=2, **ROUTED)
    await serve(world, 3)
    assert (0, 1) == (proxy.weight, len(proxy.arm("candidate")))
    proxy.answers = True
    proxy.take_up()
    await serve(world, 2)
    as_before(world, proxy)


async def test_a_candidate_that_does_not_answer_has_no_share(world: World, proxy: Proxy) -> None:
    await ready(world, replicas=3)
    edit(world, "int8", replicas=3)
    await until_weight(world, proxy, 25)
    (name,) = proxy.arm("candidate")
    set_condition(world.engine_pods()[name], "Ready", "False")
    await serve(world)
    assert name not in proxy.arm("candidate")
    assert proxy.weight in (0, 25)
    assert bool(proxy.arm("candidate")) or not proxy.weight


async def test_without_others_candidates_serve_everybody(world: World, proxy: Proxy) -> None:
    await ready(world)
    edit(world, "int8")
    await until_weight(world, proxy, 25)
    (other,) = proxy.arm("stable")
    set_condition(world.engine_pods()[other], "Ready", "False")
    await serve(world)
    assert 0 == proxy.weight
    assert 1 == len(proxy.arm("stable"))


async def test_a_weight_that_somebody_edits_is_put_back(world: World, proxy: Proxy) -> None:
    await ready(world)
    edit(world, "int8")
    await until_weight(world, proxy, 5)
    stable, candidate = proxy.route["spec"]["rules"][0]["backendRefs"]
    stable["weight"], candidate["weight"] = 10, 90
    await serve(world)
    assert 5 == proxy.weight


async def test_without_the_gateway_in_the_spec_all_of_it_goes(world: World, proxy: Proxy) -> None:
    await ready(world, **STICKY)
    edit(world, "int8", **STICKY)
    await until_weight(world, proxy, 5)
    world.put(replicas=2, rollbackPolicyRef={"name": "policy"}, kvCache={"dtype": "int8"})
    await serve(world)
    assert {} == world.cluster.of(Kind.HTTPRoute)
    assert {} == world.cluster.of(Kind.BackendTrafficPolicy)
    assert {NAME, f"{NAME}-engines"} == set(world.cluster.of(Kind.Service))
    assert 2 == len(proxy.arm("stable"))
    assert "NoGateway" == world.condition("Routed")["reason"]
    assert "traffic" not in world.status
    before = len(world.cluster.changes)
    await world.tick(1)
    assert not [change for change in world.cluster.changes[before:] if change[0] == "delete"]


class KilledError(Exception):
    """The end of a process, where a test wants it."""


async def _ends(world: World, proxy: Proxy, kill_at: int | None) -> tuple[str, int]:
    """Verdict of a trial whose operator is killed at its n-th change, and how many there were."""
    await ready(world, **STICKY)
    put_policy(world, ab={"steps": [25], "minRequests": 1, "minDurationSeconds": 0})
    edit(world, "int8", **STICKY)
    inner, counted = world.cluster.on_change, 0

    def on_change(kind: Kind, found: dict[str, Any]) -> None:
        nonlocal counted
        if inner is not None:
            inner(kind, found)
        if kind in (Kind.Pod, Kind.HTTPRoute, Kind.BackendTrafficPolicy, Kind.ConfigMap):
            counted += 1
            if counted == kill_at:
                raise KilledError

    world.cluster.on_change = on_change
    worse = world.engines.worse
    looks_left = 100
    while looks_left:
        looks_left -= 1
        try:
            await serve(world)
        except KilledError:
            world.new_controller()
        if proxy.weight == 25:
            worse["int8"] = 0.4
        if world.cluster.of(Kind.KVTrial) and only_trial(world).get("state") == "Finished":
            looks_left = min(looks_left, 4)
    return only_trial(world)["verdict"], counted


async def test_a_kill_at_any_change_leaves_one_outcome(settings: Any) -> None:
    """Every write that traffic depends on, from the trial's begin to its end, one world each."""
    world = World(settings)
    verdict, changes = await _ends(world, Proxy(world.cluster), None)
    await world.http.aclose()
    assert "RolledBack" == verdict
    assert changes > 15
    for kill_at in range(1, changes + 1):
        world = World(settings)
        proxy = Proxy(world.cluster)
        verdict, _ = await _ends(world, proxy, kill_at)
        await world.http.aclose()
        assert "RolledBack" == verdict, kill_at
        assert [] == proxy.faults, kill_at
        as_before(world, proxy)
        assert 1 == len(world.cluster.of(Kind.KVTrial))
        assert {"bfloat16"} == set(world.engines.dtypes.values()), kill_at


async def test_engines_that_were_started_for_a_trial_get_its_share_and_lose_it_first(
    world: World, proxy: Proxy
) -> None:
    new = engine_spec(image="registry.example/engine:new")
    await ready(world)
    world.put(replicas=2, **ROUTED, engine=new)

    async def look() -> None:
        world.engines.finished += 2
        await serve(world)
        world.finish_check(code=0)
        world.roll()
        for pod in world.engine_pods().values():
            world.come_up(pod)

    for weight in (5, 25, 50):
        for _ in range(60):
            await look()
            if proxy.weight == weight:
                break
        assert (weight, 1) == (proxy.weight, len(proxy.arm("candidate")))
    (trial,) = world.cluster.of(Kind.KVTrial).values()
    trial["spec"]["control"] = "RollBack"
    for _ in range(12):
        await look()
    assert "AskedFor" == only_trial(world)["reason"]
    as_before(world, proxy)
    assert [] == proxy.faults
    assert {5, 25, 50} <= set(proxy.weights)
