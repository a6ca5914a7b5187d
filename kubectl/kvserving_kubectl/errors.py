"""Everything that a command may end with, as one small tree; each message is one for its user."""

from collections.abc import Sequence


class PluginError(Exception):
    """Base of all errors of the plugin; `status` is what the command exits with."""

    status = 1


class UsageError(PluginError):
    """What was asked for makes no sense as it was put."""

    status = 2


class NoConnection(PluginError):  # noqa: N818 - named after the state of the cluster
    """The API server cannot be reached, or the kubeconfig leads to none."""


class Unauthorized(PluginError):  # noqa: N818 - likewise
    """The API server does not know who asks."""


class NotInstalled(PluginError):  # noqa: N818 - likewise
    """The cluster does not know the kind: the operator's CRDs are not there."""


class Refused(PluginError):  # noqa: N818 - named after what the API did
    """The API server refused the call; repeating it cannot help."""


class Forbidden(PluginError):  # noqa: N818 - likewise
    """A permission is missing: `verb` on `resource`, in `namespace` unless it is empty."""

    def __init__(self, verb: str, resource: str, namespace: str, told: str = "") -> None:
        where = f"in namespace {namespace}" if namespace else "in the whole cluster"
        scope = f" -n {namespace}" if namespace else " --all-namespaces"
        super().__init__(
            f"forbidden: the verb {verb} on {resource} {where} is missing; whoever runs the "
            f"cluster can grant it (`kubectl auth can-i {verb} {resource}{scope}` tells when)"
            + (f": {told}" if told else "")
        )
        self.verb = verb
        self.resource = resource
        self.namespace = namespace


class NotFound(PluginError):  # noqa: N818 - likewise
    """There is no object of that name; `near` are names that look alike."""

    def __init__(self, what: str, name: str, namespace: str, near: Sequence[str] = ()) -> None:
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"no {what} {name} in namespace {namespace}{hint}")
        self.near = tuple(near)


class Faulty(PluginError):  # noqa: N818 - named after what was looked at
    """Something that was checked has faults, which have been shown already."""
