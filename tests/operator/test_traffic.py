"""Tracks, weights and the steps between them, without a cluster."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import pytest

from kvserving_operator.api.v1alpha1 import RequestedBy, RoutingSpec, SplitBy
from kvserving_operator.live import KVSettings
from kvserving_operator.observe import PodView, pod_view
from kvserving_operator.render.route import parent, route, session_policy
from kvserving_operator.traffic.arms import Wish, wish
from kvserving_operator.traffic.load import demand, share
from kvserving_operator.traffic.sessions import keeping
from kvserving_operator.traffic.stages import WAIT, Stage, Standing, next_stage
from kvserving_operator.traffic.state import TrafficState
from kvserving_operator.traffic.view import (
    ENVOY_GATEWAY,
    RouteView,
    covers,
    policy_problem,
    ready_endpoints,
    route_view,
)
from kvserving_operator.trials.record import Record
from kvserving_tuner.judge import Cause
from kvserving_tuner.observation import (
    EngineObservation,
    FleetObservation,
    GaugeWindow,
    Observation,
    Window,
)
from kvserving_tuner.readings import Known, Reading, Unknown
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.trials.plan import Guard, Plan
from kvserving_tuner.trials.progress import Conclusion, Progress, State, Verdict
from operatorkit.engines import runtime_document
from operatorkit.specs import NAME, NAMESPACE, REF

UNKNOWN = Unknown("not measured")
INT8 = KVSettings(kv_cache_dtype="int8")
OFFERS = ("auto", "bfloat16", "int8", "int4")


def pod(name: str, *, candidate: bool = False, ready: bool = True) -> PodView:
    track = "candidate" if candidate else "stable"
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return pod_view(
        {
            "metadata": {"name": name, "uid": name, "labels": {"kvserving.dev/track": track}},
            "status": {"conditions": conditions},
        }
    )


def runtime(**dtypes: str) -> dict[str, RuntimeState]:
    return {
        name: RuntimeState.model_validate(
            {"target": name, **runtime_document(16, dtype, OFFERS)}
        )
        for name, dtype in dtypes.items()
    }


def record(
    *candidates: str, state: State = State.RUNNING, step: int = 0, **more: Any
) -> Record:
    progress = Progress(state=state, step=step, candidates=candidates, **more)
    return Record(
        name="trial",
        requested_by=RequestedBy.SPEC,
        asked=INT8,
        template="t",
        stable=KVSettings(),
        candidate=INT8,
        fallback=KVSettings(),
        plan=Plan(steps=(5, 25, 50)),
        reject_for_seconds=0,
        progress=progress,
    )


class TestShare:
    """What pods can carry."""

    @pytest.mark.parametrize(
        ("asked", "candidates", "others", "load", "percent", "raised"),
        [
            pytest.param(5, 1, 3, 1.0, 5, False, id="three of four idle pods carry 95 %"),
            pytest.param(5, 1, 3, 2.8, 5, False, id="just so"),
            pytest.param(5, 1, 3, 2.9, 25, True, id="no more"),
            pytest.param(5, 1, 1, 0.9, 5, False, id="one of two carries nearly all"),
            pytest.param(5, 1, 1, 1.0, 50, True, id="but not more"),
            pytest.param(75, 1, 1, 1.5, 50, True, id="the candidate cannot carry it either"),
            pytest.param(50, 1, 1, 9.0, 50, False, id="nothing to raise"),
            pytest.param(5, 1, 3, None, 5, False, id="no reason without numbers"),
            pytest.param(100, 2, 1, 0.1, 99, False, id="each arm gets something"),
            pytest.param(1, 1, 400, 0.1, 1, False, id="nor less than a percent"),
        ],
    )
    def test_a_step_that_pods_cannot_carry_is_raised(
        self,
        asked: int,
        candidates: int,
        others: int,
        load: float | None,
        percent: int,
        raised: bool,
    ) -> None:
        found = share(asked, candidates, others, load)
        assert (percent, raised) == (found.percent, found.raised)

    def test_once_raised_it_stays_for_its_step(self) -> None:
        assert share(5, 1, 3, 0.1, raised=True).raised
        assert share(5, 1, 3, None, raised=True).percent == 25

    @pytest.mark.parametrize("pods", [(0, 3), (3, 0)])
    def test_an_empty_arm_has_no_share(self, pods: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="expected pods in both arms"):
            share(5, *pods, load=None)


def gauge(value: float) -> GaugeWindow:
    return GaugeWindow(value, value, value, value, value, value)


def engine(
    name: str,
    running: float = 4,
    waiting: float = 0,
    usage: float = 0.25,
    cap: Reading = Known(16, 0),
    finished: Reading = UNKNOWN,
    **window: Any,
) -> EngineObservation:
    full = Window(
        start=0, end=10, scrapes=2,
        running=gauge(running), waiting=gauge(waiting), kv_usage=gauge(usage),
        **dict.fromkeys(
            (
                "preemptions", "generation_tokens", "prompt_tokens", "finished", "prefix_queries",
                "prefix_hits", "ttft", "tpot", "prompt_lengths", "answer_lengths",
                "unexplained_departures", "generation_slowdown",
            ),
            UNKNOWN,
        ),
    )  # fmt: skip
    full = replace(full, **window)
    return EngineObservation(
        target=name, at=10, answered=True, ranks=1, epoch_start=0, epoch_reason=None,
        running=UNKNOWN, waiting=UNKNOWN, kv_usage_max=UNKNOWN, kv_usage_mean=UNKNOWN,
        capacity_tokens=UNKNOWN, block_size=UNKNOWN, max_active_seqs=cap, short=UNKNOWN, full=full,
        prompt_lengths=UNKNOWN, answer_lengths=UNKNOWN, totals={"finished": finished},
    )  # fmt: skip


def observation(*engines: EngineObservation) -> Observation:
    fleet = FleetObservation(
        len(engines), len(engines), *([UNKNOWN] * 9), ttft=UNKNOWN, tpot=UNKNOWN
    )
    return Observation(at=10, engines=engines, fleet=fleet)


class TestDemand:
    """How many engines' worth of work there is."""

    def test_the_scarcer_of_sequences_and_cache_counts(self) -> None:
        seen = observation(engine("a", running=8, usage=0.1), engine("b", running=1, usage=0.75))
        assert demand(seen) == pytest.approx(0.5 + 0.75)

    def test_those_that_wait_count(self) -> None:
        assert demand(observation(engine("a", running=16, waiting=8))) == pytest.approx(1.5)

    @pytest.mark.parametrize(
        "missing", [{"cap": UNKNOWN}, {"cap": Known(0, 0)}, {"kv_usage": UNKNOWN}]
    )
    def test_one_engine_that_is_not_known_makes_all_unknown(self, missing: dict[str, Any]) -> None:
        assert demand(observation(engine("a"), engine("b", **missing))) is None

    def test_nothing_is_known_of_nothing(self) -> None:
        assert demand(None) is None
        assert demand(observation()) is None


class TestWish:
    """Which pods go to the candidates' track."""

    def test_all_pods_are_stable_without_a_trial(self) -> None:
        pods = [pod("a", candidate=True), pod("b")]
        assert wish(None, pods, runtime(a="int8", b="bfloat16"), 0.1) == Wish()

    def test_a_candidate_leaves_the_others_before_it_takes_the_change(self) -> None:
        found = wish(record("a"), [pod("a"), pod("b")], runtime(a="bfloat16", b="bfloat16"), 0.1)
        assert (frozenset("a"), False, 5) == (found.candidates, found.takes, found.asked)

    def test_with_the_change_it_gets_the_steps_share(self) -> None:
        seen = runtime(a="int8", b="bfloat16")
        found = wish(record("a", step=1), [pod("a", candidate=True), pod("b")], seen, 0.1)
        assert (25, True, False) == (found.weight, found.takes, found.raised)

    def test_one_that_cannot_be_read_gets_no_more(self) -> None:
        assert not wish(record("a"), [pod("a"), pod("b")], runtime(b="bfloat16"), 0.1).takes

    @pytest.mark.parametrize(
        "pods",
        [
            pytest.param([pod("a")], id="one pod"),
            pytest.param([pod("a"), pod("b", ready=False)], id="the others do not answer"),
            pytest.param([pod("a", ready=False), pod("b")], id="the candidate does not"),
        ],
    )
    def test_without_two_arms_there_is_no_choice(self, pods: list[PodView]) -> None:
        assert wish(record("a"), pods, runtime(a="int8", b="bfloat16"), 0.1) == Wish()

    def test_a_step_with_all_pods_is_no_split(self) -> None:
        pods = [pod("a", candidate=True), pod("b")]
        found = wish(record("a", "b"), pods, runtime(a="int8", b="int8"), 0.1)
        assert Wish() == found

    def test_a_rolled_back_pod_stays_out_until_it_has_given_the_change_up(self) -> None:
        conclusion = Conclusion(
            verdict=Verdict.ROLLED_BACK, reason=Cause.QUALITY_DROP, message="", to_fallback=True
        )
        ending = record(state=State.ROLLING_BACK, conclusion=conclusion)
        pods = [pod("a", candidate=True), pod("b")]
        still = wish(ending, pods, runtime(a="int8", b="bfloat16"), 0.1)
        assert (frozenset("a"), 0) == (still.candidates, still.weight)
        assert Wish() == wish(ending, pods, runtime(a="bfloat16", b="bfloat16"), 0.1)

    def test_nor_is_it_kept_out_where_nobody_else_answers(self) -> None:
        ending = record(state=State.ROLLING_BACK)
        pods = [pod("a", candidate=True), pod("b", ready=False)]
        assert Wish() == wish(ending, pods, runtime(a="int8"), 0.1)

    def test_a_promoted_pod_joins_the_others_at_once(self) -> None:
        conclusion = Conclusion(verdict=Verdict.PROMOTED, reason=Cause.WITHIN_BOUNDS, message="")
        ending = record("a", state=State.PROMOTING, conclusion=conclusion)
        pods = [pod("a", candidate=True), pod("b")]
        assert Wish() == wish(ending, pods, runtime(a="int8", b="bfloat16"), 0.1)


A, B, C = frozenset("a"), frozenset("b"), frozenset("c")
ALL = A | B | C
SPLIT = Standing(A, A, B | C, 5)


class TestStage:
    """Each transition, and each trap."""

    @pytest.mark.parametrize(
        ("at", "wanted", "stage"),
        [
            pytest.param(Standing(), Wish(), None, id="nothing to do"),
            pytest.param(SPLIT, Wish(A, 5), None, id="all as wished"),
            pytest.param(
                Standing(stable_ready=ALL), Wish(A, 5), Stage(to_candidate=A), id="labels first"
            ),
            pytest.param(
                Standing(A, frozenset(), B | C), Wish(A, 5), WAIT, id="no weight for no endpoint"
            ),
            pytest.param(
                Standing(A, A, B | C), Wish(A, 5, takes=False), None, id="none before the change"
            ),
            pytest.param(Standing(A, A, B | C), Wish(A, 5), Stage(weight=5), id="then the weight"),
            pytest.param(SPLIT, Wish(A, 25), Stage(weight=25), id="more for the same"),
            pytest.param(SPLIT, Wish(A | B, 25), Stage(to_candidate=B), id="more pods first"),
            pytest.param(
                Standing(A | B, A, C, 5), Wish(A | B, 25), WAIT, id="and all of their endpoints"
            ),
            pytest.param(
                Standing(A | B, A | B, C, 5),
                Wish(A | B, 25, takes=False),
                None,
                id="the share stands while one of them takes the change",
            ),
            pytest.param(SPLIT, Wish(), Stage(weight=0), id="the weight goes first"),
            pytest.param(
                replace(SPLIT, weight=0), Wish(), Stage(to_stable=A), id="and labels after it"
            ),
            pytest.param(
                replace(SPLIT, weight=0, acknowledged=False), Wish(), WAIT, id="not before it is in"
            ),
            pytest.param(
                Standing(A, frozenset(), B | C, 25),
                Wish(A, 25),
                Stage(weight=0),
                id="an arm without endpoints has no share",
            ),
            pytest.param(
                Standing(A | B, A | B, C, 50), Wish(A, 25), Stage(weight=25), id="less first"
            ),
            pytest.param(
                Standing(A | B, A | B, C, 25), Wish(A, 25), Stage(to_stable=B), id="fewer pods then"
            ),
            pytest.param(
                Standing(A, A, B | C, 5), Wish(B, 5), Stage(weight=0), id="another pod: out first"
            ),
            pytest.param(
                Standing(A, A, frozenset(), 5),
                Wish(),
                Stage(to_stable=A, weight=0),
                id="nobody else answers: all at once",
            ),
            pytest.param(
                Standing(stable_ready=A), Wish(A, 5), WAIT, id="the stable arm is not emptied"
            ),
        ],
    )
    def test_one_cluster(self, at: Standing, wanted: Wish, stage: Stage | None) -> None:
        assert stage == next_stage(at, wanted)

    @pytest.mark.parametrize(
        ("weight", "wanted", "then"), [(0, 5, 1), (1, 5, 5), (25, 0, 1), (1, 0, 0), (0, 1, 1)]
    )
    def test_clusters_come_and_go_through_1_percent(
        self, weight: int, wanted: int, then: int
    ) -> None:
        at = replace(SPLIT, weight=weight, clusters=True)
        stage = next_stage(at, Wish(A if wanted else frozenset(), wanted))
        assert stage is not None
        assert then == stage.weight

    def test_but_not_for_an_arm_that_is_gone(self) -> None:
        at = Standing(A, frozenset(), B, 50, clusters=True)
        stage = next_stage(at, Wish(A, 50))
        assert stage is not None
        assert 0 == stage.weight


def subsets(pods: frozenset[str]) -> Iterator[frozenset[str]]:
    sizes = range(len(pods) + 1)
    yield from map(frozenset, chain.from_iterable(combinations(sorted(pods), n) for n in sizes))


@pytest.mark.parametrize("clusters", [False, True])
def test_from_everywhere_every_wish_is_reached_without_a_fault(clusters: bool) -> None:
    """As after a kill at any point: two pods that answer at least, in any tracks."""
    starts = 0
    for labelled in subsets(ALL):
        for weight in (0, 1, 5, 50, 99):
            for chosen in subsets(ALL):
                if chosen == ALL:
                    continue
                wanted = Wish(chosen, 25 if chosen else 0)
                starts += 1
                _converges(labelled, weight, wanted, clusters)
    assert 280 == starts


def _converges(labelled: frozenset[str], weight: int, wanted: Wish, clusters: bool) -> None:
    sound = bool(labelled or not weight) and labelled != ALL
    for _ in range(12):
        at = Standing(labelled, labelled, ALL - labelled, weight, clusters)
        stage = next_stage(at, wanted)
        if stage is None:
            break
        assert not stage.waits, (at, wanted)
        labelled = (labelled | stage.to_candidate) - stage.to_stable
        before = weight
        weight = weight if stage.weight is None else stage.weight
        if sound:
            assert labelled or not weight, (at, wanted, stage)
            assert labelled != ALL, (at, wanted, stage)
            if clusters and before != weight and 0 in (before, weight):
                assert 1 == max(before, weight), (at, wanted, stage)
    assert (labelled, weight) == (wanted.candidates, wanted.weight)


ROUTING = RoutingSpec.model_validate({"gatewayRef": {"name": "gw", "namespace": "edge"}})


class TestRoute:
    """What is stored, and how it is read back."""

    def test_both_arms_have_their_weight_and_no_answer_ends_by_time(self) -> None:
        spec = route(REF, ROUTING, 5, clusters=False)["spec"]
        (rule,) = spec["rules"]
        assert {"request": "0s"} == rule["timeouts"]
        weights = [(each["name"], each["weight"]) for each in rule["backendRefs"]]
        assert [(f"{NAME}-stable", 95), (f"{NAME}-candidate", 5)] == weights
        assert not any("filters" in each for each in rule["backendRefs"])
        assert "edge" == spec["parentRefs"][0]["namespace"]

    def test_users_do_not_reach_what_is_not_theirs(self) -> None:
        (match,) = route(REF, ROUTING, 0, clusters=False)["spec"]["rules"][0]["matches"]
        assert {"type": "PathPrefix", "value": "/v1"} == match["path"]

    def test_tracks_of_their_own_clusters_are_named_in_answers(self) -> None:
        backends = route(REF, ROUTING, 5, clusters=True)["spec"]["rules"][0]["backendRefs"]
        named = [b["filters"][0]["responseHeaderModifier"]["set"][0]["value"] for b in backends]
        assert ["stable", "candidate"] == named

    def test_the_listener_and_the_names_pass_through(self) -> None:
        routing = RoutingSpec.model_validate(
            {"gatewayRef": {"name": "gw", "sectionName": "web"}, "hostnames": ["chat.example"]}
        )
        spec = route(REF, routing, 0, clusters=False)["spec"]
        assert ("web", NAMESPACE) == (
            spec["parentRefs"][0]["sectionName"],
            spec["parentRefs"][0]["namespace"],
        )
        assert ["chat.example"] == spec["hostnames"]

    def test_the_policy_hashes_the_header_of_this_route(self) -> None:
        spec = session_policy(REF, "x-user")["spec"]
        assert ("HTTPRoute", NAME) == (spec["targetRefs"][0]["kind"], spec["targetRefs"][0]["name"])
        assert [{"name": "x-user"}] == spec["loadBalancer"]["consistentHash"]["headers"]

    def test_without_an_answer_it_is_not_in_force(self) -> None:
        view = stored_view(5)
        assert (5, False, "") == (view.weight, view.accepted, view.controller)

    def test_the_answer_to_another_gateway_is_none(self) -> None:
        assert not stored_view(5, answer(parentRef={"name": "other"})).accepted

    def test_an_answer_about_an_older_version_acknowledges_nothing(self) -> None:
        assert stored_view(5, answer(generation=2)).acknowledged
        old = stored_view(5, answer(generation=1))
        assert (True, False) == (old.accepted, old.acknowledged)

    @pytest.mark.parametrize("type", ["Accepted", "ResolvedRefs"])
    def test_a_fault_is_told_in_the_controllers_words(self, type: str) -> None:
        fault = {"type": type, "status": "False", "reason": "NoGood", "message": "bad"}
        found = answer()
        found["conditions"] = [c for c in found["conditions"] if c["type"] != type] + [fault]
        view = stored_view(5, found)
        assert (False, "NoGood: bad") == (view.accepted, view.problem)


def answer(
    generation: int = 2, controller: str = ENVOY_GATEWAY, **more: Any
) -> dict[str, Any]:
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


class TestMeasured:
    """The share that candidates were seen to get."""

    def test_requests_count_in_the_arm_of_the_engine_that_ended_them(self) -> None:
        state = TrafficState().under(25)
        for a, b in ((100, 500), (105, 520), (130, 595)):
            seen = observation(engine("a", finished=Known(a, 0)), engine("b", finished=Known(b, 0)))
            state = state.counted(seen, {"a"})
        assert (30, 95) == (state.candidate, state.stable)
        assert state.shown_percent == pytest.approx(24.0)

    def test_a_counter_of_a_new_process_begins_anew(self) -> None:
        state = TrafficState(weight=5, totals={"a": 100})
        assert 0 == state.counted(observation(engine("a", finished=Known(3, 0))), {"a"}).candidate

    def test_what_is_not_known_is_not_counted(self) -> None:
        state = TrafficState(weight=5, totals={"a": 100})
        assert 0 == state.counted(observation(engine("a")), {"a"}).candidate
        assert state == state.counted(None, {"a"})

    def test_another_weight_is_another_count(self) -> None:
        state = TrafficState(weight=5, totals={"a": 1}, candidate=3, stable=4, shown_percent=1.0)
        assert TrafficState(weight=25) == state.under(25)
        assert state == state.under(5)

    def test_without_a_share_nothing_is_counted(self) -> None:
        state = TrafficState(totals={"a": 100})
        assert state == state.counted(observation(engine("a", finished=Known(200, 0))), {"a"})

    def test_a_share_is_shown_again_when_a_quarter_more_is_behind_it(self) -> None:
        state = TrafficState(weight=5, totals={"a": 0, "b": 0})
        shown = []
        for a in range(10, 110, 10):
            seen = observation(engine("a", finished=Known(a, 0)), engine("b", finished=Known(a, 0)))
            state = state.counted(seen, {"a"})
            shown.append(state.shown_requests)
        assert [20, 40, 60, 80, 100, 100, 140, 140, 180, 180] == shown

    def test_a_raise_is_for_one_step(self) -> None:
        state = TrafficState().of(record("a")).model_copy(update={"raised": True})
        assert state.of(record("a")).raised
        assert not state.of(record("a", step=1)).raised
        assert not state.of(None).raised


class TestPlan:
    """Steps of shares."""

    def test_each_share_is_a_step_of_its_own(self) -> None:
        plan = Plan(steps=(5, 25, 50))
        assert plan.next_step(0, 2) is None
        weighted = plan.with_weights()
        assert [1, 2, None] == [weighted.next_step(step, 2) for step in range(3)]

    def test_but_not_for_one_pod(self) -> None:
        assert Plan(steps=(5, 25, 50)).with_weights().next_step(0, 1) is None

    def test_a_route_decides_how_many_requests_a_candidate_serves(self) -> None:
        plan = Plan(guards={Guard.TTFT: 10, Guard.THROUGHPUT: 1})
        assert {Guard.TTFT: 10} == plan.with_weights().guards
