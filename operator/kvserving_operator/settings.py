"""What an installation may set, read once from the environment at start.

Every field is the environment variable `KVSERVING_<FIELD>`; units are in the names and each default
says why it is what it is. Nothing here may change a pod that already runs: images and drain times
are recorded with a pod template when it is first rendered.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvserving_operator.errors import SettingsError

ENV_PREFIX = "KVSERVING_"


class Settings(BaseModel):
    """Operator settings; immutable once read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine_image_cpu: str = "ghcr.io/kvserving/engine-cpu:0.32.0"
    """Image of a KVServing with `accelerator: CPU` that names none."""
    engine_image_nvidia: str = "ghcr.io/kvserving/engine-cuda:0.32.0"
    """Image of a KVServing with `accelerator: NVIDIA` that names none."""
    engine_version: str = "0.32.0"
    """vLLM version inside the two default images; decides which flags and metric names exist."""

    watch_namespaces: str = ""
    """Namespaces to serve, comma separated; empty for all (needs the cluster-wide role)."""
    tick_seconds: float = Field(default=5.0, ge=0.1)
    """How often each KVServing is looked at. A preemption storm must be seen in 3 scrapes within 20
    s."""
    resync_seconds: float = Field(default=60.0, ge=1)
    """How often every child object is applied again, to undo edits made by hand."""
    request_timeout_seconds: float = Field(default=10.0, gt=0)
    """Limit of one call to the Kubernetes API."""
    engine_timeout_seconds: float = Field(default=4.0, gt=0)
    """Limit of one call to an engine; below the tick, so that a hung engine does not hold the
    others up."""

    preflight_timeout_seconds: float = Field(default=180.0, gt=0)
    """A check pod that has not answered by then is given up and the roll-out goes on: a cold import
    of vLLM on two busy cores takes 20-40 s, an image pull longer."""
    preflight_first_wait_seconds: float = Field(default=15.0, ge=0)
    """A first creation waits no longer than this for its check pod: there is no serving pod to
    protect yet, and a pod that cannot be scheduled must be reported within 30 s."""
    preflight_memory: str = "2Gi"
    """Memory limit of the check pod: vLLM's imports need about 0.8 GB, no weights are loaded."""

    endpoint_propagation_seconds: int = Field(default=15, ge=0)
    """preStop delay: how long proxies and gateways may still send to a pod that is leaving."""
    crash_limit: int = Field(default=3, ge=1)
    """A new template whose pod ended this often without ever being Ready is a failed one."""
    rollout_deadline_seconds: float = Field(default=1800.0, gt=0)
    """A roll-out that has not finished by then is a failed one; at least the start-up time-out of
    the spec is given."""
    shm_size: str = "2Gi"
    """Size of /dev/shm: workers of one engine exchange tensors through it (NCCL needs about 1 GiB
    per GPU pair)."""

    lease_name: str = "kvserving-operator"
    """Name of the Lease that fences two operators against each other."""
    lease_namespace: str = "kvserving-system"
    """Namespace of that Lease: the operator's own."""
    lease_seconds: float = Field(default=30.0, ge=1)
    """How long a holder that stopped renewing keeps the Lease: twice client-go's default, as a node
    that loads a model on every core answers slowly."""
    identity: str = ""
    """Name of this process in the Lease: the pod's name; empty for host name and a random part."""

    health_listen: str = "http://0.0.0.0:8080/healthz"
    """Address of the liveness endpoint."""
    metrics_listen_port: int = Field(default=9090, ge=0, le=65535)
    """Port of the operator's own Prometheus metrics; 0 for none."""
    web_listen_port: int = Field(default=0, ge=0, le=65535)
    """Port of the read-only web view; 0 for none, as whoever reaches it may read it."""
    web_hosts: str = ""
    """Further names by which the web view may be asked for, comma separated: those of a proxy in
    front."""
    otlp_endpoint: str = ""
    """Address that traces of decisions are sent to by OTLP over HTTP, such as
    http://collector:4318/v1/traces; empty for none."""
    metrics_token: str = Field(default="", repr=False)
    """Bearer token that scrapes must send; empty serves metrics to anyone who can connect."""
    liveness_age_seconds: float = Field(default=90.0, gt=0)
    """Liveness fails when no tick succeeded for this long: 18 ticks, so that a short API outage
    restarts nothing."""
    log_level: str = "INFO"
    """Level of the operator's own log lines."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Namespaces to watch; empty for all."""
        return _parts(self.watch_namespaces)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Further names of the web view."""
        return _parts(self.web_hosts)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def settings_from_env(environ: Mapping[str, str]) -> Settings:
    """Read the settings; unknown names are ignored.

    Kubernetes injects `KVSERVING_…_PORT` for Services of that name.
    """
    values = {
        field: environ[ENV_PREFIX + field.upper()]
        for field in Settings.model_fields
        if ENV_PREFIX + field.upper() in environ
    }
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ENV_PREFIX + str(first["loc"][0]).upper()
        raise SettingsError(f"{name}: {first['msg']}, got {first['input']!r}") from error
