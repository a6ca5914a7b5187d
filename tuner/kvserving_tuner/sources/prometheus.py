"""Reads engines through a Prometheus that already scrapes them.

Raw samples are fetched with their own timestamps instead of letting PromQL compute rates: the same
windows as for direct scrapes then apply, series that Prometheus still shows for deleted pods fall
out by age, and a restarted tuner has its windows back at once.
"""

import ast
import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from kvserving_tuner.aliases import SAMPLE_NAMES
from kvserving_tuner.observation import Observation, Problem, ProblemReason
from kvserving_tuner.scrape import ENGINE_PREFIX, Sample, Scrape, collect
from kvserving_tuner.settings import Thresholds, Windows
from kvserving_tuner.sources.base import Attempt, EngineTarget, Histories

TIMEOUT_SECONDS = 5.0
TARGETS_PER_QUERY = 40
"""Keeps the query, which travels in the URL, under the 8 KiB that proxies accept."""
OVERLAP_SECONDS = 30.0
"""Samples are asked for again this far back: remote storage may show one scrape's series late."""
MESSAGE_CHARACTERS = 200
"""An error goes into a condition, where it must be read at a glance."""


@dataclass(frozen=True, slots=True)
class _Scraped:
    """How Prometheus knows one target."""

    job: str
    instance: str
    up: bool


class PrometheusSource:
    """Observes engines from the samples that a Prometheus at `url` holds.

    `matchers` narrow the search where one Prometheus sees several clusters or namespaces, as label
    to value. A target is joined by its label `pod`, else by `instance`, its host and port. To see a
    storm in time, the engines must be scraped every 5 to 10 seconds; from 30 seconds on no window
    is ever full.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        matchers: Mapping[str, str] | None = None,
        windows: Windows | None = None,
        thresholds: Thresholds | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        session: requests.Session | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._matchers = dict(matchers or {})
        self._timeout = timeout_seconds
        self._session = session or requests.Session()
        self._headers = dict(headers or {})
        # The library's own defaults are no time-out at all, and retries that outlast a turn.
        self._api = PrometheusConnect(
            url=self._url,
            headers=self._headers,
            session=self._session,
            timeout=timeout_seconds,
            retry=Retry(total=1, backoff_factor=0.1, status_forcelist=[502, 503, 504]),
        )
        self._histories = Histories(windows, thresholds)
        self._busy = asyncio.Lock()

    async def observe(self, targets: Sequence[EngineTarget], now: float) -> Observation:
        """Ask Prometheus for the samples of `targets` up to `now` that are not known yet."""
        limit = self._timeout * 2
        try:
            async with self._busy, asyncio.timeout(limit):
                read = await asyncio.to_thread(self._read, tuple(targets), now)
        except TimeoutError:
            return self._failed(targets, now, f"no answer within {limit:g} s")
        except (requests.RequestException, _NotPrometheus) as error:
            return self._failed(targets, now, brief(error))
        return self._histories.update(targets, read, now)

    def close(self) -> None:
        """Release the connections."""
        self._session.close()

    def _failed(self, targets: Sequence[EngineTarget], now: float, why: str) -> Observation:
        problem = Problem(ProblemReason.PROMETHEUS_ERROR, None, f"Prometheus {self._url}: {why}")
        read = {target.name: Attempt(failure="Prometheus cannot be read") for target in targets}
        return self._histories.update(targets, read, now, [problem])

    def _read(self, targets: Sequence[EngineTarget], now: float) -> dict[str, Attempt]:
        self._check_health()
        read: dict[str, Attempt] = {}
        for start in range(0, len(targets), TARGETS_PER_QUERY):
            read |= self._read_some(targets[start : start + TARGETS_PER_QUERY], now)
        return read

    def _check_health(self) -> None:
        answer = self._session.get(
            f"{self._url}/-/healthy", headers=self._headers, timeout=self._timeout
        )
        # Compatible services behind a prefix do not all have this page; only a bad answer counts.
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise _NotPrometheus(f"unhealthy (HTTP {answer.status_code})")

    def _read_some(self, targets: Sequence[EngineTarget], now: float) -> dict[str, Attempt]:
        scraped = join(targets, self._query(self._up_query(targets), now))
        seconds = self._lookback(targets, now)
        instances = sorted({found.instance for found in scraped.values()})
        rows: list[Mapping[str, Any]] = []
        if instances:
            selector = self._selector({"instance": instances}, names=SAMPLE_NAMES)
            rows = self._query(f"{selector}[{seconds}s]", now)
        samples = _by_scrape(rows)
        read: dict[str, Attempt] = {}
        for target in targets:
            found = scraped.get(target.name)
            if found is None:
                read[target.name] = Attempt(failure="Prometheus does not scrape it")
                continue
            scrapes = samples.get((found.job, found.instance), [])
            failure = None if found.up else "Prometheus cannot scrape it (up is 0)"
            if found.up and not (scrapes and scrapes[-1].engine_samples):
                newest = scrapes.pop() if scrapes else Scrape(now, (), 0)
                scrapes.append(replace(newest, engine_samples=self._count(found, now)))
            read[target.name] = Attempt(tuple(scrapes), failure)
        return read

    def _count(self, found: _Scraped, now: float) -> int:
        """Series of the engine under any name: tells renamed metrics from none at all."""
        selector = self._selector({"instance": [found.instance], "job": [found.job]}, prefix=True)
        rows = self._query(f"count({selector})", now)
        return int(float(rows[0]["value"][1])) if rows else 0

    def _lookback(self, targets: Sequence[EngineTarget], now: float) -> int:
        windows = self._histories.windows
        whole = max(windows.full_seconds, windows.stale_seconds) * 1.5
        known = [self._histories.newest_at(target.name) for target in targets]
        oldest = min((at for at in known if at is not None), default=None)
        if oldest is None or None in known:
            return int(whole)
        return int(min(whole, max(0.0, now - oldest) + OVERLAP_SECONDS))

    def _up_query(self, targets: Sequence[EngineTarget]) -> str:
        pods = self._selector({"pod": [target.name for target in targets]}, names=["up"])
        instances = self._selector(
            {"instance": [netloc(target.url) for target in targets]}, names=["up"]
        )
        return f"{pods} or {instances}"

    def _selector(
        self,
        labels: Mapping[str, Iterable[str]],
        names: Iterable[str] = (),
        *,
        prefix: bool = False,
    ) -> str:
        name = f"{ENGINE_PREFIX}.+" if prefix else "|".join(sorted(names))
        matchers = [f'__name__=~"{name}"']
        matchers += [f'{label}="{quoted(value)}"' for label, value in self._matchers.items()]
        matchers += [
            f'{label}=~"{"|".join(quoted(regex_of(value)) for value in values)}"'
            for label, values in labels.items()
        ]
        return "{" + ",".join(matchers) + "}"

    def _query(self, query: str, now: float) -> list[Mapping[str, Any]]:
        try:
            rows = self._api.custom_query(query, params={"time": f"{now:.3f}"})
        except PrometheusApiClientException as error:
            raise _NotPrometheus(refused(str(error))) from None
        except (KeyError, TypeError) as error:
            # The library indexes the answer without looking at it.
            raise _NotPrometheus(f"expected a query's result: {error}") from error
        if not isinstance(rows, list):
            raise _NotPrometheus(f"expected a list of series, got {type(rows).__name__}")
        return rows


class _NotPrometheus(Exception):  # noqa: N818 - says what the other side is
    """The other side answers, but not as Prometheus does."""


def brief(error: BaseException) -> str:
    """An error in a few words; what requests says holds the whole query, its root does not."""
    if isinstance(error, requests.RequestException):
        while (cause := error.__cause__ or error.__context__) is not None:
            error = cause
    words = str(error) or type(error).__name__
    return words if len(words) <= MESSAGE_CHARACTERS else f"{words[:MESSAGE_CHARACTERS]} …"


def refused(said: str) -> str:
    """Status of a bad answer, with Prometheus' own reason where it is one.

    The library quotes the whole body. The URL is a user's, and what else stands behind it, such as
    a page that only the operator can reach, must not show up in a status.
    """
    found = re.match(r"HTTP Status Code (\d+) \((b[\"'].*)\)\Z", said, re.DOTALL)
    if found is None:
        return "expected a query's result"
    try:
        document = json.loads(ast.literal_eval(found[2]))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        document = None
    reason = document.get("error") if isinstance(document, Mapping) else None
    if isinstance(reason, str) and "errorType" in document and document.get("status") == "error":
        return f"HTTP {found[1]}: {reason}"
    return f"HTTP {found[1]}, and no reason of a Prometheus"


def netloc(url: str) -> str:
    """Host and port of a URL, as Prometheus writes them in `instance`."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def quoted(value: str) -> str:
    """A label value between double quotes in PromQL."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def regex_of(value: str) -> str:
    """A pattern of RE2 that matches exactly `value`."""
    return "".join("\\" + char if char in r"\.+*?()|[]{}^$" else char for char in value)


def join(targets: Sequence[EngineTarget], up: Iterable[Mapping[str, Any]]) -> dict[str, _Scraped]:
    """Find the one scrape job and instance of each target among `up` series.

    A pod that two jobs scrape is read from one of them, or every counter would count twice. A
    series of another pod that once had the same address is not the target's.
    """
    by_pod: dict[str, list[_Scraped]] = defaultdict(list)
    by_instance: dict[str, list[_Scraped]] = defaultdict(list)
    for row in up:
        labels = row["metric"]
        found = _Scraped(
            labels.get("job", ""), labels.get("instance", ""), float(row["value"][1]) == 1
        )
        if "pod" in labels:
            by_pod[labels["pod"]].append(found)
        else:
            by_instance[found.instance].append(found)
    joined: dict[str, _Scraped] = {}
    for target in targets:
        candidates = by_pod.get(target.name) or by_instance.get(netloc(target.url)) or []
        if candidates:
            joined[target.name] = min(
                candidates, key=lambda found: (not found.up, found.job, found.instance)
            )
    return joined


def _by_scrape(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Scrape]]:
    """Series with their samples to scrapes: all samples of one scrape share its timestamp."""
    samples: dict[tuple[str, str], dict[float, list[Sample]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        labels = dict(row["metric"])
        name = labels.pop("__name__", "")
        target = (labels.pop("job", ""), labels.pop("instance", ""))
        for at, value in row["values"]:
            samples[target][float(at)].append(Sample(name, labels, float(value)))
    return {
        target: [collect(found, at) for at, found in sorted(scrapes.items())]
        for target, scrapes in samples.items()
    }
