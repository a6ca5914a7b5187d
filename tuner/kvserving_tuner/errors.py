"""Everything the tuner may raise, as one small tree."""


class TunerError(Exception):
    """Base of all errors of this package."""


class SettingsError(TunerError):
    """A setting or a stored state cannot be used."""


class JudgeError(TunerError):
    """Evidence or a bound cannot be used."""


class SizingError(TunerError):
    """A size cannot be worked out from what was given."""

    def __init__(self, field: str, expected: str, got: str) -> None:
        """Name the field at fault."""
        super().__init__(f"{field}: expected {expected}, got {got}")
        self.field = field


class ModelConfigError(SizingError):
    """A model's configuration lacks something or contradicts itself."""


class SimulationError(TunerError):
    """A simulation cannot be run with what was given."""

    def __init__(self, field: str, expected: str, got: str) -> None:
        """Name the field at fault."""
        super().__init__(f"{field}: expected {expected}, got {got}")
        self.field = field
        self.expected = expected
        self.got = got


class ProbeSetError(TunerError):
    """A set of probes cannot be used."""


class RuntimeAPIError(TunerError):
    """An engine's runtime API did not do what was asked."""

    def __init__(self, target: str, message: str) -> None:
        """Name the engine in front of the message."""
        super().__init__(f"{target}: {message}")
        self.target = target
        self.message = message


class Unreachable(RuntimeAPIError):  # noqa: N818 - named after the state of the engine
    """The engine did not answer in time, or answered with a server error."""


class ServerFailed(Unreachable):
    """The engine answered with a server error."""


class NoRuntimeAPI(RuntimeAPIError):  # noqa: N818 - likewise
    """The engine serves, but has no runtime API: a stock image, or the plugin is off."""


class Unauthorized(RuntimeAPIError):  # noqa: N818 - likewise
    """The token was refused, or none was sent."""


class Busy(RuntimeAPIError):  # noqa: N818 - likewise
    """Another change is running on this engine."""


class Rejected(RuntimeAPIError):  # noqa: N818 - likewise
    """The engine refused the change; its settings are as before."""

    def __init__(self, target: str, field: str, expected: str, got: str, message: str) -> None:
        """Keep the field at fault beside the message."""
        super().__init__(target, message or f"{field}: expected {expected}, got {got}")
        self.field = field
        self.expected = expected
        self.got = got

    @property
    def told(self) -> str:
        """The message, with the field at fault where it does not name it itself."""
        begins = self.message.startswith(f"{self.field}:")
        return self.message if begins or not self.field else f"{self.field}: {self.message}"


class ChangeFailed(RuntimeAPIError):  # noqa: N818 - likewise
    """The engine tried what was asked and could not; its settings are as before."""

    def __init__(self, target: str, message: str, reason: str = "") -> None:
        """Keep the engine's machine-readable reason, where it gives one, beside the message."""
        super().__init__(target, message)
        self.reason = reason


class BadAnswer(RuntimeAPIError):  # noqa: N818 - likewise
    """The engine answered with something that is not the runtime API's document."""
