"""How an engine pod leaves without losing a request.

Endpoints steer new connections only, and vLLM refuses what arrives after SIGTERM even while it
drains. So SIGTERM has to wait: first until proxies have taken note, then until nothing runs or
waits. Meanwhile the plugin, told by a file, asks each client to connect anew with its next answer.
"""

from kvserving_operator.render.engine import Engine
from kvserving_operator.render.names import ENGINE_PORT

DRAIN_FILE = "/tmp/kvserving-draining"  # noqa: S108  a path inside the container
"""While it exists the plugin answers with `Connection: close`."""
EXIT_SECONDS = 30
"""What the engine has after that, for stragglers and to let go of its device."""

SCRIPT = r"""
import re, sys, time, urllib.request
delay, budget, url, mark = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]
for name in mark:
    open(name, "w").close()
time.sleep(delay)
end, idle = time.monotonic() + budget, 0
while idle < 2 and time.monotonic() < end:
    try:
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        busy = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.M)
        idle = idle + 1 if not any(map(float, busy)) else 0
    except OSError:
        idle = 0
    time.sleep(1)
"""
"""Marks the pod as leaving, waits for proxies, then until two looks a second apart find no request;
the standard library alone, as stock images run it too."""


def drain_command(engine: Engine) -> list[str]:
    """Command of the preStop hook."""
    delay = str(engine.settings.endpoint_propagation_seconds)
    budget = str(engine.spec.rollout.drain_seconds)
    url = f"http://127.0.0.1:{ENGINE_PORT}/metrics"
    mark = [DRAIN_FILE] if engine.plugin else []
    return ["python3", "-c", SCRIPT, delay, budget, url, *mark]


def grace_seconds(engine: Engine) -> int:
    """How long a pod may take to leave."""
    delay = engine.settings.endpoint_propagation_seconds
    return delay + engine.spec.rollout.drain_seconds + EXIT_SECONDS
