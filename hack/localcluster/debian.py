"""The Debian packages the tool needs: installed when allowed, named when not."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from localcluster.errors import CommandError, MissingPackagesError
from localcluster.progress import Progress
from localcluster.shell import run

# Program or file that shows that a package is there, and the package.
NEEDED: tuple[tuple[str, str], ...] = (
    ("nsenter", "util-linux"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("openssl", "openssl"),
    ("gcc", "gcc"),
    ("/usr/lib/*/libc.a", "libc6-dev"),
    ("pkg-config", "pkg-config"),
    ("/usr/include/seccomp.h", "libseccomp-dev"),
)
FOR_IMAGES: tuple[tuple[str, str], ...] = (("mmdebstrap", "mmdebstrap"),)


def missing_packages(needed: Iterable[tuple[str, str]]) -> list[str]:
    """Packages of which neither program nor file is there."""
    return [package for sign, package in needed if not _present(sign)]


def ensure_packages(
    needed: Iterable[tuple[str, str]], progress: Progress, *, install: bool
) -> None:
    """Install missing packages as root on Debian; otherwise say the exact command."""
    missing = missing_packages(needed)
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    may = install and os.geteuid() == 0 and shutil.which("apt-get") is not None
    if not may:
        raise MissingPackagesError(
            f"missing packages: {' '.join(missing)}. Install them with: sudo {' '.join(command)}"
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with progress.step(f"install Debian packages {' '.join(missing)}"):
        try:
            run(command, env=env)
        except CommandError:
            # The package lists may be missing or old.
            run(["apt-get", "update"], env=env)
            run(command, env=env)


def _present(sign: str) -> bool:
    if sign.startswith("/"):
        return any(Path("/").glob(sign.removeprefix("/")))
    return shutil.which(sign) is not None or shutil.which(sign, path="/usr/sbin:/sbin") is not None
