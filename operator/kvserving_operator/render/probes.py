"""When an engine counts as started, ready and alive.

Ready means that a completion came out recently, not that a port is open: a loading engine answers
`/health` too early. Alive is judged leniently: a busy engine must not be killed for being slow.
"""

from typing import Any

from kvserving_operator.render.engine import Engine
from kvserving_operator.render.names import ENGINE_PORT, READY_PATH

STARTUP_PERIOD_SECONDS = 5

COMPLETION_SCRIPT = """\
import json, os, sys, urllib.request
body = {"model": sys.argv[1], "prompt": "1", "max_tokens": 1, "temperature": 0}
headers = {"Content-Type": "application/json"}
if os.environ.get("VLLM_API_KEY"):
    headers["Authorization"] = "Bearer " + os.environ["VLLM_API_KEY"]
request = urllib.request.Request("http://127.0.0.1:%d/v1/completions" % int(sys.argv[2]),
                                 json.dumps(body).encode(), headers)
with urllib.request.urlopen(request, timeout=25) as answer:
    sys.exit(not json.load(answer)["choices"])
"""
"""Asks a stock image for one token; the standard library alone, since any image may run it."""


def probes(engine: Engine) -> dict[str, Any]:
    """Start-up, readiness and liveness probe of the engine container."""
    return {
        "startupProbe": _startup(engine),
        "readinessProbe": {
            "httpGet": _http(READY_PATH if engine.plugin else "/health"),
            "periodSeconds": 5,
            # The engine answers once its own one-token completion has: that may queue behind a long
            # prefill.
            "timeoutSeconds": 15,
            "failureThreshold": 3,
        },
        "livenessProbe": {
            "httpGet": _http("/health"),
            "periodSeconds": 20,
            "timeoutSeconds": 20,
            "failureThreshold": 6,
        },
    }


def _startup(engine: Engine) -> dict[str, Any]:
    """Give a model time to load.

    A stock image has no readiness of ours, so it has to produce one token before it counts as
    started; after that `/health` must do, because a completion of the probe's own would fail
    whenever the queue is long.
    """
    budget = {
        "periodSeconds": STARTUP_PERIOD_SECONDS,
        "failureThreshold": -(
            -engine.spec.rollout.startup_timeout_seconds // STARTUP_PERIOD_SECONDS
        ),
    }
    if engine.plugin:
        return {"httpGet": _http("/health"), "timeoutSeconds": 5, **budget}
    command = ["python3", "-c", COMPLETION_SCRIPT, engine.served_name, str(ENGINE_PORT)]
    return {"exec": {"command": command}, "timeoutSeconds": 30, **budget}


def _http(path: str) -> dict[str, Any]:
    return {"path": path, "port": "http"}
