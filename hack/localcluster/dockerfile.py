"""Reads the part of the Dockerfile language that the images here use; anything else is an error."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from localcluster.errors import DockerfileError

SIMPLE = frozenset({"ARG", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD", "LABEL", "EXPOSE"})
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Mount:
    """A `RUN --mount`: part of the build context that a step sees and the image does not keep."""

    source: str
    target: str


@dataclass(frozen=True)
class Step:
    """An instruction that makes a layer: RUN with its mounts, or COPY with its sources."""

    keyword: str
    text: str
    """The command of a RUN, the destination of a COPY."""
    sources: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    options: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_folder: str = "/"
    user: str = ""


@dataclass
class Recipe:
    """What a Dockerfile says, with its variables filled in."""

    base: str = ""
    steps: list[Step] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = ""
    working_folder: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def parse(text: str, arguments: Mapping[str, str]) -> Recipe:
    """Read a Dockerfile; arguments are what `docker build --build-arg` would give."""
    recipe, variables = Recipe(), dict[str, str]()
    for line in logical_lines(text):
        keyword, _, rest = line.partition(" ")
        keyword, rest = keyword.upper(), rest.strip()
        if not recipe.base and keyword not in {"FROM", "ARG"}:
            raise DockerfileError(f"{line[:60]}: expected FROM first")
        if keyword == "RUN":
            recipe.steps.append(_run(rest, recipe, variables))
        else:
            _apply(keyword, _fill(rest, variables | recipe.env), recipe, variables, arguments)
    if not recipe.base:
        raise DockerfileError("no FROM instruction")
    return recipe


def logical_lines(text: str) -> list[str]:
    """Instructions with their continuation lines joined and comments dropped."""
    lines, current = list[str](), ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        if line.rstrip().endswith("\\"):
            current += line.rstrip()[:-1].strip() + " "
            continue
        lines.append((current + line.strip()).strip())
        current = ""
    if current:
        raise DockerfileError(f"{current[:60]}: the last line ends with a backslash")
    return lines


def _apply(
    keyword: str,
    rest: str,
    recipe: Recipe,
    variables: dict[str, str],
    arguments: Mapping[str, str],
) -> None:
    if keyword == "FROM":
        if recipe.base or " " in rest:
            raise DockerfileError(f"FROM {rest}: expected one stage without options or names")
        recipe.base = rest
    elif keyword == "COPY":
        recipe.steps.append(_copy(rest, recipe))
    elif keyword == "ARG":
        name, _, default = rest.partition("=")
        variables[name] = arguments.get(name, default)
    elif keyword in {"ENV", "LABEL"}:
        target = recipe.env if keyword == "ENV" else recipe.labels
        for part in shlex.split(rest):
            name, equals, value = part.partition("=")
            if not equals:
                raise DockerfileError(f"{keyword} {rest}: expected NAME=VALUE")
            target[name] = value
    elif keyword == "USER":
        recipe.user = rest
    elif keyword == "WORKDIR":
        recipe.working_folder = rest
    elif keyword == "ENTRYPOINT":
        recipe.entrypoint = _list(keyword, rest)
    elif keyword == "CMD":
        recipe.command = _list(keyword, rest)
    elif keyword != "EXPOSE":
        raise DockerfileError(f"{keyword}: not understood; expected one of {', '.join(SIMPLE)}")


def _run(rest: str, recipe: Recipe, variables: Mapping[str, str]) -> Step:
    mounts = []
    while rest.startswith("--"):
        option, _, rest = rest.partition(" ")
        rest = rest.strip()
        settings = dict(
            part.partition("=")[::2] for part in option.removeprefix("--mount=").split(",")
        )
        if not option.startswith("--mount=") or settings.get("type") != "bind":
            raise DockerfileError(f"RUN {option}: expected --mount=type=bind,source=…,target=…")
        mounts.append(Mount(settings.get("source", "."), settings["target"]))
    return Step(
        "RUN",
        rest,
        mounts=tuple(mounts),
        # The shell fills in variables, so it gets the build arguments too.
        env=tuple(sorted({**variables, **recipe.env}.items())),
        working_folder=recipe.working_folder or "/",
        user=recipe.user,
    )


def _copy(rest: str, recipe: Recipe) -> Step:
    words = shlex.split(rest)
    options = tuple(word for word in words if word.startswith("--"))
    paths = [word for word in words if not word.startswith("--")]
    if any(not option.startswith("--chmod=") for option in options) or len(paths) < 2:
        raise DockerfileError(f"COPY {rest}: expected [--chmod=MODE] SOURCE… DESTINATION")
    return Step(
        "COPY",
        paths[-1],
        sources=tuple(paths[:-1]),
        options=options,
        working_folder=recipe.working_folder or "/",
    )


def _list(keyword: str, rest: str) -> tuple[str, ...]:
    try:
        words = json.loads(rest)
    except ValueError as error:
        raise DockerfileError(f'{keyword} {rest}: expected the form ["program", …]') from error
    return tuple(str(word) for word in words)


def _fill(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: values.get(found.group(1) or found.group(2), ""), text)
