"""Where an engine is reached: at its pod's own address, since a Service answers for any of them."""

from kvserving_operator.observe import PodView
from kvserving_operator.render.names import ENGINE_PORT
from kvserving_tuner.sources.base import EngineTarget


def target_of(pod: PodView, token: str | None, api_key: str | None = None) -> EngineTarget:
    """Address of a pod's engine, the token for its runtime API, and its users' key."""
    host = f"[{pod.ip}]" if pod.ip and ":" in pod.ip else pod.ip
    return EngineTarget(
        name=pod.name, url=f"http://{host}:{ENGINE_PORT}", token=token, api_key=api_key
    )
