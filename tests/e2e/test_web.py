"""The web view during a real trial, in a real browser: pictures of it, and what axe says of it.

In `make test-full`. Pictures go to the folder that KVSERVING_SCREENSHOTS names, else to a temporary
one.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe

from harness import chart
from harness.kube import KVSERVING, Kube, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import tiny_serving
from harness.serving import wait_ready
from harness.trials import wait_trial
from webkit.browser import browsing, page_of, program

CHROMIUM = program()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]
NAME = "watched"
POLICY = {
    "apiVersion": "kvserving.dev/v1alpha1",
    "kind": "KVRollbackPolicy",
    "metadata": {"name": "quick"},
    "spec": {
        "ab": {"steps": [50], "minRequests": 10, "minDurationSeconds": 60},
        "quality": {"minSamples": 8, "probes": ["Likelihood"], "maxDropPercent": 10},
    },
}


@pytest.fixture(scope="module")
def view(kube: Kube, operator: None) -> Iterator[str]:
    """Address of the web view, which the chart serves for as long as this module takes."""
    chart.install(kube.kubeconfig, {**chart.local_values(), "web": {"enabled": True}})
    yield kube.service_url("kvserving-operator-web", chart.NAMESPACE)
    chart.install(kube.kubeconfig, chart.local_values())


@pytest.fixture(scope="module")
def serving(kube: Kube, view: str, namespace: str) -> str:
    kube.apply(POLICY, namespace)
    slo = {"ttftMilliseconds": 2000, "tpotMilliseconds": 200}
    manifest = tiny_serving(NAME, replicas=2, rollbackPolicyRef={"name": "quick"}, slo=slo)
    kube.apply(manifest, namespace)
    wait_ready(kube, NAME, namespace)
    return namespace


async def text_of(view: str, path: str, picture: Path | None = None) -> str:
    """Text of a page, which has to pass axe; with a picture of it where one is wanted."""
    assert CHROMIUM is not None
    async with browsing(CHROMIUM) as browser, page_of(browser) as page:
        await page.goto(view + path)
        result = await Axe().run(page)
        assert [] == [each["id"] for each in result.response["violations"]]
        if picture is not None:
            await page.screenshot(path=picture, full_page=True)
        return await page.inner_text("main")


async def test_a_real_trial_is_seen_while_it_runs_and_after(
    kube: Kube, view: str, serving: str, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("KVSERVING_SCREENSHOTS", tmp_path))
    page = f"/servings/{serving}/{NAME}"
    load = ChatLoad(kube.service_url(NAME, serving), "tiny", clients=8, max_tokens=16,
                    pause_seconds=2)  # fmt: skip
    with in_background(load, 600):
        kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": {"dtype": "int8"}}})
        change = {"kvCacheDtype": "int8"}
        trial = wait_trial(kube, serving, change, state="Running")["metadata"]["name"]

        def evidence() -> bool:
            found = kube.get("kvtrials.kvserving.dev", trial, serving) or {}
            names = [each["name"] for each in found["status"].get("evidence", ())]
            return any(name.startswith("Served") for name in names)

        wait_for(evidence, "the trial has evidence from engines with the change", 120)
        text = await text_of(view, page, folder / "real-service.png")
        assert "Yes: " in text
        assert "TrialStarted" in text
        text = await text_of(view, f"{page}/trials/{trial}", folder / "real-trial.png")
        assert "ServedLikelihood" in text
        assert "Not found" not in text
        assert f"{serving}/{NAME}" in await text_of(view, "/", folder / "real-fleet.png")
        wait_trial(kube, serving, change, state="Finished")
    assert [] == load.failures
    wait_for(
        lambda: (kube.get(KVSERVING, NAME, serving) or {})["status"].get("verdicts"),
        "a verdict",
        60,
    )
    assert "TrialPromoted" in await text_of(view, page)
