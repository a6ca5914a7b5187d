"""How this machine reaches package indexes: lent to build steps, never left in an image."""

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import CommandError
from localcluster.shell import run

# Inside a step; /run is a tmpfs there, so whatever is put here is gone afterwards.
FOLDER = "/run/build-settings"
PREFIXES = ("PIP_", "UV_")
NAMES = frozenset(
    {"http_proxy", "https_proxy", "no_proxy", "all_proxy", "ssl_cert_file", "requests_ca_bundle"}
)
# They decide what an image contains, which is for the Dockerfile and its lock to say.
EXCLUDED = frozenset({"PIP_FIND_LINKS", "UV_FIND_LINKS", "PIP_REQUIRE_VIRTUALENV", "UV_PROJECT"})
CONFIG_FILES: Mapping[str, tuple[str, ...]] = {
    "PIP_CONFIG_FILE": ("~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf"),
    "UV_CONFIG_FILE": ("~/.config/uv/uv.toml", "/etc/uv/uv.toml"),
}


@dataclass(frozen=True)
class HostSettings:
    """Variables and files for the time of a step."""

    environment: Mapping[str, str]
    files: tuple[tuple[str, str], ...]
    """Pairs of a file here and its path inside the step."""
    apt_lines: tuple[str, ...] = ()
    apt_suite: str = ""
    """Suite this machine's apt sources are for; they are lent to images of the same suite only."""

    def apt_sources(self, suite: str) -> list[str]:
        """Source files for mmdebstrap; none lets it take its own."""
        return [str(path) for path in apt_source_files()] if suite == self.apt_suite else []

    def mount_script(self, suite: str) -> str:
        """Shell lines that lend the settings to the root folder in $root."""
        lines = [f'mkdir -p "$root{FOLDER}/apt/sources.list.d"']
        for outside, inside in self.files:
            lines += [
                f': > "$root{inside}"',
                f'mount --bind -o ro {shlex.quote(outside)} "$root{inside}"',
            ]
        apt = list(self.apt_lines)
        if sources := self.apt_sources(suite):
            lines += [
                f'cp {shlex.quote(source)} "$root{FOLDER}/apt/sources.list.d/"'
                for source in sources
            ]
            apt += [
                'Dir::Etc::sourcelist "/dev/null";',
                f'Dir::Etc::sourceparts "{FOLDER}/apt/sources.list.d";',
            ]
        text = shlex.quote("\n".join(apt))
        lines.append(f'printf "%s\\n" {text} > "$root{FOLDER}/apt/apt.conf"')
        # Names of hosts come from this machine while a step runs, from the cluster later.
        lines += ["made=", *_lend("/etc/resolv.conf"), *_lend("/etc/hosts")]
        return "\n".join(lines)


CLEANUP_SCRIPT = (
    'umount "$root/etc/resolv.conf" "$root/etc/hosts"\nfor file in $made; do rm -f "$file"; done'
)


def host_settings(environment: Mapping[str, str]) -> HostSettings:
    """Settings of this machine."""
    variables, files = lend_files(chosen_variables(environment), Path.exists)
    return HostSettings(
        environment={**variables, "APT_CONFIG": f"{FOLDER}/apt/apt.conf"},
        files=files,
        apt_lines=_acquire_settings(),
        apt_suite=_suite(),
    )


def chosen_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that say how an index is reached, and the configuration files found."""
    chosen = {
        name: value
        for name, value in environment.items()
        if name not in EXCLUDED and (name.startswith(PREFIXES) or name.lower() in NAMES)
    }
    for name, places in CONFIG_FILES.items():
        found = [path for place in places if (path := Path(place).expanduser()).is_file()]
        if found and name not in chosen:
            chosen[name] = str(found[0])
    return chosen


def lend_files(
    variables: Mapping[str, str], exists: Callable[[Path], bool]
) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Variables that name files, changed to name the lent copies, and those files."""
    changed, files = dict[str, str](), dict[str, str]()
    for name, value in variables.items():
        if value.startswith("/") and value != os.devnull and exists(Path(value)):
            files.setdefault(value, f"{FOLDER}/{len(files)}-{Path(value).name}")
            changed[name] = files[value]
        else:
            changed[name] = value
    return changed, tuple(files.items())


def apt_source_files() -> Iterable[Path]:
    """Files that say where this machine's packages come from."""
    single = Path("/etc/apt/sources.list")
    parts = Path("/etc/apt/sources.list.d")
    if single.is_file() and single.stat().st_size:
        yield single
    for pattern in ("*.list", "*.sources"):
        yield from sorted(parts.glob(pattern))


def _lend(path: str) -> list[str]:
    return [
        f'[ -e "$root{path}" ] || {{ : > "$root{path}"; made="$made $root{path}"; }}',
        f'mount --bind -o ro {path} "$root{path}"',
    ]


def _acquire_settings() -> tuple[str, ...]:
    """Proxies, certificates and the like from apt's configuration."""
    if shutil.which("apt-config") is None:
        return ()
    try:
        lines = run(["apt-config", "dump"]).splitlines()
    except CommandError:
        return ()
    wanted = ("::Proxy", "::CaInfo", "::CaPath", "::Verify-", "::Check-", "::Retries", "::Timeout")
    return tuple(
        line
        for line in lines
        if line.startswith("Acquire::")
        and '""' not in line
        and any(part in line for part in wanted)
    )


def _suite() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip('"')
    return ""
