"""The one module that imports kopf: changes and a clock come in, looks at KVServings come out.

kopf is edge-triggered; every handler here leads to the same look, which compares what is with what
should be. Timers, not daemons: a daemon that ends is not started again. Nothing is returned, since
kopf would write it to the status.
"""

import asyncio
import logging
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import kopf

from kvserving_operator.acceptance import Acceptance
from kvserving_operator.actions import Announce
from kvserving_operator.api.plain import plain
from kvserving_operator.cluster import Cluster, KubernetesCluster
from kvserving_operator.controller import Controller
from kvserving_operator.errors import OperatorError, Retryable
from kvserving_operator.fence import FencedCluster
from kvserving_operator.kinds import API_GROUP, API_VERSION, Object
from kvserving_operator.lease import LeaseGuard, LeaseSettings
from kvserving_operator.metrics import OperatorMetrics
from kvserving_operator.metrics_server import serve_metrics
from kvserving_operator.render.names import MANAGED_BY, SERVING_LABEL
from kvserving_operator.reporting import audit
from kvserving_operator.settings import Settings
from kvserving_operator.watchers import watch

logger = logging.getLogger(__name__)

FINALIZER = f"{API_GROUP}/finalizer"
CONSISTENCY_SECONDS = 60.0
"""How long kopf waits to see its own change: with less, a lagging watch makes it handle objects
twice."""
RELEASE_SECONDS = 1.0
"""How soon after a look has ended the KVServing that was deleted during it is let go; kopf's own
default leaves it there for a minute."""
MAXIMUM_WORKERS = 8
"""Threads for what cannot be asynchronous."""
EVENT_PAUSE_SECONDS = 1.0
"""Least time between two looks that children ask for: a roll-out moves them many times a second."""

RETRIED = "failed; will retry"
"""What kopf says, as an error, of each call to the Kubernetes API that it is going to repeat."""

Connect = Callable[[AsyncExitStack], Awaitable[Cluster]]


@dataclass
class Operator:
    """One operator process: its parts, made at start-up, and whether it must stop."""

    settings: Settings
    connect: Connect
    login: Callable[..., kopf.ConnectionInfo | None]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    controller: Controller | None = None
    acceptance: Acceptance | None = None
    guard: LeaseGuard | None = None
    keeper: asyncio.Task[None] | None = None
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    looked_at: dict[tuple[str, str], float] = field(default_factory=dict)

    async def start(self) -> None:
        """Connect and wait for the Lease; nothing is watched before it is held."""
        try:
            await self._start()
        except BaseException:
            # kopf does not clean up after a start that was cut short.
            await self.resources.aclose()
            raise

    async def _start(self) -> None:
        cluster = await self.connect(self.resources)
        http = await self.resources.enter_async_context(
            httpx.AsyncClient(timeout=self.settings.engine_timeout_seconds, trust_env=False)
        )
        if self.settings.metrics_listen_port:
            self.resources.callback(
                serve_metrics(
                    self.settings.metrics_listen_port,
                    self.metrics.registry,
                    self.settings.metrics_token,
                )
            )
        watchers = await watch(self.settings, self.resources)
        self.guard = LeaseGuard(
            cluster,
            LeaseSettings(
                namespace=self.settings.lease_namespace,
                name=self.settings.lease_name,
                identity=self.settings.identity,
                duration_seconds=self.settings.lease_seconds,
            ),
            monotonic=time.monotonic,
        )
        await self.guard.acquire()
        self.metrics.lease_held.set(1)
        self.keeper = asyncio.create_task(self._keep(self.guard))
        self.controller = Controller(
            cluster,
            self.settings,
            http,
            self.metrics,
            _announce,
            self.guard.ensure_held,
            watchers=watchers,
        )
        self.acceptance = Acceptance(FencedCluster(cluster, self.guard.ensure_held), time.time)

    async def finish(self) -> None:
        """Let the Lease go, so that a successor need not wait, and close connections."""
        if self.keeper is not None:
            self.keeper.cancel()
            await asyncio.gather(self.keeper, return_exceptions=True)
        if self.guard is not None:
            await self.guard.release()
        await self.resources.aclose()

    async def look(self, namespace: str, name: str) -> None:
        """Look at a KVServing once; raises OperatorError where it should be tried again."""
        if self.controller is None:
            raise Retryable("the operator is still starting")
        self.looked_at[(namespace, name)] = time.monotonic()
        try:
            await self.controller.tick(namespace, name)
        except Retryable:
            self.metrics.ticks.labels("unavailable").inc()
            raise
        except Exception:
            self.metrics.ticks.labels("failed").inc()
            raise
        self.metrics.ticks.labels("ok").inc()

    def looked_at_recently(self, namespace: str, name: str) -> bool:
        """Whether a child's change may wait for the next timer."""
        then = self.looked_at.get((namespace, name))
        return then is not None and time.monotonic() - then < EVENT_PAUSE_SECONDS

    async def _keep(self, guard: LeaseGuard) -> None:
        try:
            await guard.keep()
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("the lease is not renewed any more")
        # However renewing ended, this process must not go on without the Lease.
        self.metrics.lease_held.set(0)
        self.lost = True
        self.stop.set()


def register(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    """Bind an operator's handlers to a kopf registry."""
    _register_life_cycle(registry, operator)
    _register_servings(registry, operator)
    _register_children(registry, operator)
    _register_others(registry, operator)


def _register_life_cycle(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    @kopf.on.login(registry=registry, id="login")
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return operator.login(**kwargs)

    @kopf.on.startup(registry=registry, id="start")
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await operator.start()

    @kopf.on.cleanup(registry=registry, id="finish")
    async def finish(**_: Any) -> None:
        await operator.finish()

    @kopf.on.probe(registry=registry, id="seconds_since_tick")
    async def probe(**_: Any) -> float:
        age = operator.controller.seconds_since_success if operator.controller else 0.0
        if age > operator.settings.liveness_age_seconds:
            limit = operator.settings.liveness_age_seconds
            # Any other error would be tried again before the probe is answered.
            raise kopf.PermanentError(f"no look succeeded for {age:.0f} s, limit {limit:g} s")
        return round(age, 1)


def _register_servings(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    resource = (API_GROUP, API_VERSION, "kvservings")

    @kopf.on.resume(*resource, registry=registry, id="changed")
    @kopf.on.create(*resource, registry=registry, id="changed")
    @kopf.on.update(*resource, registry=registry, id="changed")
    async def changed(namespace: Any, name: str, **_: Any) -> None:
        try:
            await operator.look(namespace, name)
        except OperatorError as error:
            raise as_kopf_error(error) from error

    @kopf.on.delete(*resource, registry=registry, id="deleted")
    async def deleted(namespace: Any, name: str, **_: Any) -> None:
        # Children go by their owner references; what is left is to stop looking at it.
        if operator.controller is not None:
            operator.controller.forget(namespace, name)

    @kopf.timer(
        *resource, registry=registry, id="tick", interval=operator.settings.tick_seconds, sharp=True
    )
    async def tick(namespace: Any, name: str, **_: Any) -> None:
        # Anything raised here would change kopf's rhythm, and a PermanentError would end it.
        try:
            await operator.look(namespace, name)
        except Exception as error:
            known = isinstance(error, OperatorError)
            logger.warning("%s/%s: %s", namespace, name, error, exc_info=not known)


def _register_children(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    async def child_changed(event: Any, namespace: Any, labels: Any, **_: Any) -> None:
        name = labels.get(SERVING_LABEL)
        if name is None or operator.controller is None:
            return
        if event.get("type") == "DELETED":
            operator.controller.touch(namespace, name)
        if operator.looked_at_recently(namespace, name):
            return
        try:
            await operator.look(namespace, name)
        except OperatorError as error:
            logger.warning("%s/%s: %s", namespace, name, error)

    for group, version, plural in (
        ("", "v1", "pods"),
        ("", "v1", "services"),
        ("apps", "v1", "deployments"),
    ):
        kopf.on.event(
            group, version, plural, registry=registry, id="child", labels=dict(MANAGED_BY)
        )(child_changed)


def _register_others(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    """Policies and trials. Events leave no annotation of kopf's on what people wrote."""

    @kopf.on.event(API_GROUP, API_VERSION, "kvrollbackpolicies", registry=registry, id="policy")
    async def policy(event: Any, body: Any, **_: Any) -> None:
        if operator.acceptance is not None and event.get("type") != "DELETED":
            await told(operator.acceptance.policy(body), body)

    @kopf.on.event(API_GROUP, API_VERSION, "kvtrials", registry=registry, id="trial")
    async def trial(event: Any, body: Any, **_: Any) -> None:
        if operator.acceptance is not None and event.get("type") != "DELETED":
            await told(operator.acceptance.trial(body), body)

    async def told(saying: Awaitable[None], body: Any) -> None:
        try:
            await saying
        except OperatorError as error:
            meta = body["metadata"]
            logger.warning("%s/%s: %s", meta["namespace"], meta["name"], error)


def configure(settings: kopf.OperatorSettings) -> None:
    """Set kopf up for this operator."""
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=API_GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=API_GROUP)
    settings.persistence.consistency_timeout = CONSISTENCY_SECONDS
    settings.background.cancellation_polling = RELEASE_SECONDS
    settings.execution.max_workers = MAXIMUM_WORKERS
    settings.scanning.disabled = True
    settings.posting.reporting_component = "kvserving-operator"
    settings.posting.event_name_prefix = "kvserving-"
    selector = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
    for plural in ("pods", "services", "deployments"):
        settings.watching.label_selectors[plural] = selector


def retried_is_a_warning(record: logging.LogRecord) -> bool:
    """Log filter: a call that kopf will repeat, as a busy API server asks for, is no error yet."""
    if record.levelno == logging.ERROR and RETRIED in record.getMessage():
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    return True


def as_kopf_error(error: OperatorError) -> Exception:
    """Give kopf's error for ours: everything is tried again, since the cluster may change."""
    delay = error.delay_seconds if isinstance(error, Retryable) else 10.0
    return kopf.TemporaryError(str(error), delay=delay)


def run(settings: Settings) -> int:
    """Run until told to stop; give the exit status."""
    verbose = settings.log_level == "DEBUG"
    kopf.configure(log_format=kopf.LogFormat.JSON, verbose=verbose)
    # The audit log is for machines: its lines are JSON already.
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(message)s"))
    audit.addHandler(lines)
    audit.propagate = False
    for handler in logging.getLogger().handlers:
        handler.addFilter(retried_is_a_warning)
    if not verbose:
        # Each timer, probe and request that succeeds would be a line.
        for name in ("kopf.objects", "kopf.activities", "aiohttp.access", "httpx"):
            logging.getLogger(name).setLevel(logging.WARNING)
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    async def connect(resources: AsyncExitStack) -> Cluster:
        cluster = await KubernetesCluster.connect(settings.request_timeout_seconds)
        return await resources.enter_async_context(cluster)

    identity: Any = settings.identity or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    settings = settings.model_copy(update={"identity": identity})
    operator = Operator(settings, connect, _login)
    registry = kopf.OperatorRegistry()
    register(registry, operator)
    await kopf.operator(
        registry=registry,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        standalone=True,
        liveness_endpoint=settings.health_listen,
        # kopf's own guess asks for the user's name, which a container's user need not have.
        identity=identity,
        stop_flag=operator.stop,
    )
    return 1 if operator.lost else 0


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def _announce(body: Object, announcement: Announce) -> None:
    kopf.event(
        kopf.Body(dict(body)),  # type: ignore[arg-type]
        type="Warning" if announcement.warning else "Normal",
        reason=announcement.reason,
        message=plain(announcement.message),
    )
