"""Network links of this machine, which vanish by themselves with the namespace they lead to."""

from localcluster.errors import CommandError
from localcluster.shell import run, succeeds


def remove_link(name: str) -> None:
    """Remove a link; none is left, whoever removes it first."""
    try:
        run(["ip", "link", "delete", name])
    except CommandError:
        # The kernel may still be at it after the last process in the namespace has ended.
        if succeeds(["ip", "link", "show", name]):
            raise
