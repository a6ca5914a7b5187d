"""The Dockerfiles of this project, read as the image builder reads them."""

import subprocess
from pathlib import Path

import pytest

from localcluster.builder import BASE_IMAGE, copy_script, run_script, step_keys
from localcluster.dockerfile import Mount, Step, parse
from localcluster.errors import DockerfileError
from localcluster.images import ENGINE, IMAGES, Image, chosen_images, recipe_of
from localcluster.layout import REPOSITORY, Layout

LAYOUT = Layout(cache=Path("/cache"))


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_every_image_is_readable_unprivileged_and_made_from_what_is_there(image: Image) -> None:
    recipe = recipe_of(image, LAYOUT)
    assert recipe.base == BASE_IMAGE
    assert recipe.user == "65532:65532"
    assert recipe.entrypoint
    for step in recipe.steps:
        for source in [*step.sources, *(mount.source for mount in step.mounts)]:
            assert (REPOSITORY / source).exists(), source


def test_the_cuda_engine_differs_from_the_cpu_engine_only_below_the_package() -> None:
    cpu = recipe_of(ENGINE, LAYOUT)
    cuda = parse((REPOSITORY / "images/engine-cuda/Dockerfile").read_text(), {})
    assert cuda.base == "docker.io/vllm/vllm-openai:v0.32.0"
    assert cuda.steps[-1].mounts == cpu.steps[-1].mounts
    assert (cuda.user, cuda.entrypoint, cuda.command) == (cpu.user, cpu.entrypoint, cpu.command)


def test_the_alias_engine_version_and_tags_agree() -> None:
    alias = (REPOSITORY / "images/engine-cpu/vllm-alias/METADATA").read_text()
    lock = (REPOSITORY / "requirements/engine-cpu.txt").read_text()
    assert "Version: 0.32.0+cpu\n" in alias
    assert "\nvllm-cpu==0.32.0 " in lock
    assert ENGINE.reference.endswith(":0.32.0")


def test_the_python_layer_is_shared() -> None:
    first = {recipe_of(image, LAYOUT).steps[0] for image in chosen_images(["engine", "operator"])}
    assert len(first) == 1


def test_unknown_images_are_refused_by_name() -> None:
    assert chosen_images([]) == list(IMAGES) == chosen_images(["all"])
    with pytest.raises(Exception, match="image enigne: expected one of"):
        chosen_images(["enigne"])


def test_instructions_variables_and_continuations() -> None:
    text = (
        'ARG TAG=1\nFROM base:${TAG}\n# comment\nARG MODE=fast\nENV A=1 B="two words"\n'
        "WORKDIR /w\nRUN --mount=type=bind,source=x,target=/run/x \\\n    make $MODE \\\n    all\n"
        'COPY --chmod=755 a b /bin/\nUSER 1\nLABEL k=$A\nEXPOSE 1\nCMD ["run", "it"]\n'
    )
    recipe = parse(text, {"TAG": "9", "MODE": "slow"})
    assert recipe.base == "base:9"
    run, copy = recipe.steps
    assert run.text == "make $MODE all"
    assert run.mounts == (Mount("x", "/run/x"),)
    assert dict(run.env) == {"TAG": "9", "MODE": "slow", "A": "1", "B": "two words"}
    assert (run.working_folder, run.user) == ("/w", "")
    assert (copy.sources, copy.text, copy.options) == (("a", "b"), "/bin/", ("--chmod=755",))
    assert recipe.labels == {"k": "1"}
    assert recipe.command == ("run", "it")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RUN x\n", "expected FROM first"),
        ("", "no FROM"),
        ("FROM a AS b\n", "one stage"),
        ("FROM a\nADD x y\n", "ADD: not understood"),
        ("FROM a\nRUN --mount=type=cache,target=/c x\n", "expected --mount=type=bind"),
        ("FROM a\nCOPY --from=b x y\n", "expected"),
        ("FROM a\nCMD run it\n", "expected the form"),
        ("FROM a\nENV A 1\n", "NAME=VALUE"),
        ("FROM a\nRUN x \\\n", "ends with a backslash"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(DockerfileError, match=message):
        parse(text, {})


def test_a_changed_source_changes_its_step_and_what_follows(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.py").write_text("1")
    recipe = parse(
        "FROM a\nRUN apt\nRUN --mount=type=bind,source=lock,target=/l pip\n"
        "COPY source /source\nRUN last\n",
        {},
    )
    before = step_keys(recipe, tmp_path)
    (tmp_path / "source" / "a.py").write_text("2")
    after = step_keys(recipe, tmp_path)
    changed = [old != new for old, new in zip(before, after, strict=True)]
    assert changed == [False, False, False, True, True]
    (tmp_path / "lock").write_text("2")
    assert step_keys(recipe, tmp_path)[2] != after[2]


def test_an_edit_of_the_plugin_rebuilds_only_the_last_layer_of_the_engine() -> None:
    recipe = recipe_of(ENGINE, LAYOUT)
    with_kernels = ["kernels" in [mount.source for mount in step.mounts] for step in recipe.steps]
    assert with_kernels == [False] * (len(recipe.steps) - 1) + [True]
    assert not any(step.sources for step in recipe.steps)


def test_run_scripts_quote_and_clean_up_their_mount_points() -> None:
    step = Step("RUN", "echo 'a b'", mounts=(Mount("x y", "/opt/x"),), user="7:7")
    script = run_script(step, "LEND")
    assert 'mount --bind -o ro "$context"/\'x y\' "$root"/opt/x' in script
    assert "chroot --userspec=7:7 \"$root\" /bin/sh -euc 'cd / && echo '\"'\"'a b'\"'\"''" in script
    assert script.index("LEND") < script.index("chroot") < script.index("umount")


def test_copy_scripts_copy_what_docker_would(tmp_path: Path) -> None:
    context, root = tmp_path / "context", tmp_path / "root"
    (context / "folder" / "inner").mkdir(parents=True)
    (context / "folder" / "inner" / "deep").write_text("deep")
    (context / "file").write_text("file")
    root.mkdir()
    for step in (
        Step("COPY", "/etc/one", sources=("file",), options=("--chmod=600",)),
        Step("COPY", "/srv/", sources=("file",)),
        Step("COPY", "data", sources=("folder",), working_folder="/w"),
    ):
        places = f"root={root}; context={context}; chown() {{ :; }}\n"
        subprocess.run(["/bin/sh", "-euc", places + copy_script(step)], check=True)
    assert (root / "etc/one").stat().st_mode & 0o777 == 0o600
    assert (root / "srv/file").read_text() == "file"
    assert (root / "w/data/inner/deep").read_text() == "deep"
