"""Preflight on models: what is known of them, whether they are whole, what is wrong with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.hub import read_hub_model
from kvserving_kernels.preflight.model import ModelConfig, read_model
from kvserving_kernels.preflight.weights import check_weights
from preflightkit import CPU, GPU, LLAMA, found


@pytest.mark.parametrize(
    ("extra", "longest"),
    [
        ({}, 4096),
        ({"n_positions": 2048}, 2048),
        ({"model_max_length": 8192}, 8192),
        # Kinds of scaling whose reach is in the number already, and others.
        ({"rope_parameters": {"rope_type": "default"}}, 4096),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_type": "default"},
                }
            },
            32768,
        ),
        (
            {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            4096,
        ),
    ],
)
def test_a_context_longer_than_the_model_allows_is_refused(
    extra: dict[str, Any], longest: int
) -> None:
    config = {**LLAMA, **extra}
    assert found(f"m --max-model-len {longest}", GPU, config) is None
    finding = found(f"m --max-model-len {longest + 1}", GPU, config)
    assert finding is not None
    assert (finding.field, finding.reason) == ("--max-model-len", Reason.MODEL_LENGTH_TOO_LONG)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ("m --max-model-len 99999", {"rope_scaling": {"rope_type": "dynamic"}}),
        ("m --max-model-len 99999", {"max_position_embeddings": None}),
        ('m --max-model-len 99999 --hf-overrides={"max_position_embeddings":1}', {}),
    ],
)
def test_a_length_that_is_not_known_is_left_to_vllm(arguments: str, extra: dict[str, Any]) -> None:
    assert found(arguments, GPU, {**LLAMA, **extra}) is None


def test_a_model_in_32_bits_may_be_asked_for_either_format_of_16() -> None:
    for dtype in ("bfloat16", "float16"):
        assert (
            found(f"m --kv-cache-dtype {dtype}", CPU, {**LLAMA, "torch_dtype": "float32"}) is None
        )


@pytest.mark.parametrize(
    ("asked", "made", "refused"),
    [
        ("awq", "gptq", True),
        ("fp8", "compressed-tensors", True),
        ("gptq_marlin", "gptq", False),
        # vLLM makes one of the other, or quantizes while it loads.
        ("humming", "gptq", False),
        ("fp8", None, False),
        ("awq", "unheard-of", False),
    ],
)
def test_weights_are_not_loaded_as_quantized_otherwise(
    asked: str, made: str | None, refused: bool
) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": made} if made else None}
    finding = found(f"m --quantization={asked}", GPU, config)
    assert (finding is not None) is refused
    if finding is not None:
        assert finding.field == "--quantization"
        assert f"expected {made}" in finding.message
        assert f"got {asked}" in finding.message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole model in two files."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
    for name in names.values():
        (tmp_path / name).touch()
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    return tmp_path


def test_a_model_folder_is_read(folder: Path) -> None:
    config = read_model(str(folder))
    assert config == ModelConfig(
        torch_dtype="bfloat16",
        max_positions=4096,
        head_size=32,
        attention_heads=8,
        kv_heads=2,
        layers=4,
        full_layers=4,
        default_length=4096,
    )
    assert check_weights(folder, None) is None


def test_a_file_that_names_the_caches_format_is_seen(folder: Path) -> None:
    (folder / "hf_quant_config.json").touch()
    config = read_model(str(folder))
    assert isinstance(config, ModelConfig)
    assert config.names_kv_format


def test_a_copy_that_was_cut_off_names_what_is_missing(folder: Path) -> None:
    (folder / "model-2.safetensors").unlink()
    finding = check_weights(folder, "auto")
    assert finding is not None
    assert (finding.field, finding.reason) == ("model", Reason.MODEL_INCOMPLETE)
    assert "model-2.safetensors, not there" in finding.message


def test_a_folder_without_weights_is_refused_unless_a_loader_needs_none(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    finding = check_weights(folder, None)
    assert finding is not None
    assert "no weights" in finding.message
    assert check_weights(folder, "dummy") is None
    (folder / "params.json").touch()
    assert check_weights(folder, None) is None


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 3}'])
def test_an_index_that_cannot_be_read_is_left_to_vllm(folder: Path, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    assert check_weights(folder, None) is None


@pytest.mark.parametrize(
    ("content", "reason", "text"),
    [
        (None, Reason.MODEL_NOT_FOUND, "has no config.json; it holds weights.bin"),
        ("{", Reason.MODEL_CONFIG_UNREADABLE, "cannot be read"),
        ("[]", Reason.MODEL_CONFIG_UNREADABLE, "architectures or model_type"),
        ("{}", Reason.MODEL_CONFIG_UNREADABLE, "architectures or model_type"),
    ],
)
def test_a_model_folder_that_cannot_be_used_says_why(
    tmp_path: Path, content: str | None, reason: Reason, text: str
) -> None:
    (tmp_path / "weights.bin").touch()
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    finding = read_model(str(tmp_path))
    assert isinstance(finding, Finding)
    assert (finding.field, finding.reason) == ("model", reason)
    assert text in finding.message


class RepositoryNotFoundError(Exception):
    """Stands for the hub client's."""


class GatedRepoError(RepositoryNotFoundError):
    """Stands for the hub client's, which is one of the former."""


class EntryNotFoundError(Exception):
    """Stands for the hub client's."""


class LocalEntryNotFoundError(EntryNotFoundError):
    """Stands for the hub client's, for a hub that is not reached."""


class Hub:
    """Files of one model."""

    def __init__(self, *errors: Exception, folder: Path | None = None) -> None:
        self.errors = list(errors)
        self.folder = folder
        self.asked: list[tuple[str, str, str | None]] = []

    def __call__(self, model: str, name: str, revision: str | None) -> str:
        """Give a file's path, or the next error."""
        self.asked.append((model, name, revision))
        if name == "config.json" and self.folder is not None:
            return str(self.folder / name)
        raise self.errors.pop(0)


def test_a_model_on_a_hub_is_read_like_one_in_a_folder(folder: Path) -> None:
    hub = Hub(EntryNotFoundError(), folder=folder)
    assert read_hub_model("org/m", "v1", hub) == read_model(str(folder))
    assert hub.asked[0] == ("org/m", "config.json", "v1")


@pytest.mark.parametrize("error", [LocalEntryNotFoundError(), ConnectionError()])
def test_a_file_that_may_be_there_makes_the_caches_format_unsure(
    folder: Path, error: Exception
) -> None:
    config = read_hub_model("org/m", None, Hub(error, folder=folder))
    assert isinstance(config, ModelConfig)
    assert config.names_kv_format


@pytest.mark.parametrize("error", [RepositoryNotFoundError, GatedRepoError])
def test_a_model_that_the_hub_does_not_have_is_refused(error: type[Exception]) -> None:
    finding = read_hub_model("org/m", "v1", Hub(error("404 Client Error\nmore")))
    assert isinstance(finding, Finding)
    assert (finding.field, finding.reason) == ("model", Reason.MODEL_NOT_FOUND)
    assert "no model org/m at revision v1" in finding.message
    assert finding.message.endswith("404 Client Error")


@pytest.mark.parametrize("error", [LocalEntryNotFoundError, EntryNotFoundError, OSError])
def test_a_hub_that_is_not_reached_says_nothing(error: type[Exception]) -> None:
    assert read_hub_model("org/m", None, Hub(error())) is None
