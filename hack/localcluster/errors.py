"""What can go wrong in the local cluster, each with a message a person can act on."""

from http import HTTPStatus


class LocalClusterError(Exception):
    """Base of every error this tool raises on purpose."""


class MissingPackagesError(LocalClusterError):
    """Programs or Debian packages are missing and may not be installed from here."""


class UnsupportedHostError(LocalClusterError):
    """The machine cannot run a Kubernetes node; the message names the missing ability."""


class CommandError(LocalClusterError):
    """A program ended with an error; the message carries the end of its output."""


class ApiError(LocalClusterError):
    """The API server refused a request or could not be reached."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the HTTP status (0 when no answer came) beside the message."""
        super().__init__(message)
        self.status = status

    @property
    def passing(self) -> bool:
        """Whether the same call may succeed in a moment: no answer, or a server in trouble."""
        return self.status in (0, HTTPStatus.TOO_MANY_REQUESTS) or self.status >= 500


class NotReadyError(LocalClusterError):
    """Something did not become ready in time; the message names it and its log."""


class DockerfileError(LocalClusterError):
    """A Dockerfile uses what the image builder does not understand."""
