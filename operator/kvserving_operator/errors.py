"""The operator's error tree; `handlers.py` maps it to kopf's errors in one place."""


class OperatorError(Exception):
    """Anything the operator raises on purpose."""


class SettingsError(OperatorError):
    """An environment variable holds a value that cannot be used."""


class Retryable(OperatorError):  # noqa: N818 - says what to do about it
    """Worth another attempt after `delay_seconds`; nothing is wrong with the resource itself."""

    def __init__(self, message: str, delay_seconds: float = 5.0) -> None:
        super().__init__(message)
        self.delay_seconds = delay_seconds


class ApiUnavailable(Retryable):
    """The Kubernetes API did not answer, or asked to come back later."""


class Conflict(Retryable):
    """Somebody else changed the object in between."""


class ApiRejected(OperatorError):  # noqa: N818 - named after what the API did
    """The Kubernetes API answered no; repeating the same call cannot help."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LeaseLost(OperatorError):  # noqa: N818 - likewise
    """Another operator may be acting: nothing may be changed any more."""
