"""Calls of an engine's own endpoints, with every failure as a typed error."""

from collections.abc import Mapping

import httpx

from kvserving_tuner.errors import (
    BadAnswer,
    Busy,
    ChangeFailed,
    NoRuntimeAPI,
    Rejected,
    ServerFailed,
    Unauthorized,
    Unreachable,
)
from kvserving_tuner.sources.base import EngineTarget


async def call(
    client: httpx.AsyncClient,
    target: EngineTarget,
    method: str,
    path: str,
    body: Mapping[str, object] | None,
    timeout_seconds: float,
    *,
    as_user: bool = False,
) -> object:
    """JSON document of a good answer; RuntimeAPIError of the kind that another one stands for.

    `as_user` calls with the users' key, and not with the token of the runtime API.
    """
    credential = target.api_key if as_user else target.token
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    try:
        response = await client.request(
            method,
            target.url.rstrip("/") + path,
            json=body,
            headers=headers,
            timeout=timeout_seconds,
        )
    except httpx.TimeoutException as error:
        raise Unreachable(target.name, f"no answer within {timeout_seconds:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unreachable(target.name, str(error) or type(error).__name__) from error
    return _read(target.name, response)


def _read(target: str, response: httpx.Response) -> object:
    try:
        document = response.json()
    except ValueError:
        document = None
    match response.status_code:
        case 200:
            return document
        case 401 | 403:
            raise Unauthorized(target, f"the token was refused (HTTP {response.status_code})")
        case 404:
            raise NoRuntimeAPI(target, "the engine has no runtime API")
        case 409:
            raise Busy(target, _explanation(document) or "another change is running")
        case 422:
            raise _rejection(target, document)
        case 500 if _explained(document):
            raise ChangeFailed(target, _message(document, response), _reason(document))
        case status if status >= 500:
            raise ServerFailed(target, f"HTTP {status}: {_message(document, response)}")
        case status:
            raise BadAnswer(target, f"HTTP {status}: {_message(document, response)}")


def _rejection(target: str, document: object) -> Rejected:
    error = document.get("error") if isinstance(document, Mapping) else None
    detail = error if isinstance(error, Mapping) else {}
    field, expected, got = (str(detail.get(key, "unknown")) for key in ("field", "expected", "got"))
    return Rejected(target, field, expected, got, str(detail.get("message", "")))


def _explained(document: object) -> bool:
    """Whether the runtime API itself tells of a failure; anything else may fail with a 500 too."""
    return isinstance(document, Mapping) and isinstance(document.get("error"), Mapping)


def _reason(document: object) -> str:
    error = document.get("error") if isinstance(document, Mapping) else None
    return str(error.get("reason", "")) if isinstance(error, Mapping) else ""


def _message(document: object, response: httpx.Response) -> str:
    return _explanation(document) or response.text[:200]


def _explanation(document: object) -> str:
    error = document.get("error", document.get("detail")) if isinstance(document, Mapping) else None
    if isinstance(error, Mapping):
        error = error.get("message")
    return str(error) if error else ""
