"""An engine that names no plugins: what it is asked, and what it gets once it has a setting."""

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from enginekit import stand_in
from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.plugin import adapters, register
from kvserving_kernels.plugin.on_request import wait_for_settings

INT4 = {"kvserving": {"kv_cache_dtype": "int4"}}
NOT_OURS: list[object] = [None, {}, {"another": {"kvserving": 1}}, "kvserving"]
OURS: list[object] = [INT4, {"kvserving": {}}, {"kvserving": None}, {"another": 1, **INT4}]


class Base:
    """What a platform has from another one."""

    checked: list[object]

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Note it."""
        cls.checked.append(vllm_config.additional_config)

    @classmethod
    def get_attn_backend_cls(cls, selected: object, *, num_heads: int) -> str:
        """The choice of vLLM's own."""
        return f"{cls.__name__} {selected} {num_heads}"


class Engine:
    """A process of vLLM's, whose adapter wraps what it finds."""

    def __init__(self) -> None:
        class Platform(Base):
            """One of its own for each test, since it is changed."""

        self.owner: Any = Platform
        self.owner.checked = []
        self.config = SimpleNamespace(additional_config=None)
        self.installed = 0
        self.wait()

    def wait(self) -> None:
        """What is done when the plugin is loaded."""
        wait_for_settings(self.owner(), lambda: self.config, self._install)

    def wrap(self, who: str) -> None:
        """Have a platform's choice told by somebody else too."""
        original = self.owner.get_attn_backend_cls
        self.owner.get_attn_backend_cls = lambda *rest, **named: f"{who} {original(*rest, **named)}"

    def check(self, additional: object) -> None:
        """Make a configuration."""
        self.config = SimpleNamespace(additional_config=additional)
        self.owner.check_and_update_config(self.config)

    def choose(self, additional: object) -> str:
        """Build a model in a worker that got its configuration."""
        self.config = SimpleNamespace(additional_config=additional)
        found: str = self.owner.get_attn_backend_cls("None", num_heads=8)
        return found

    def _install(self) -> None:
        self.installed += 1
        self.wrap("ours")


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.mark.parametrize("additional", NOT_OURS, ids=str)
def test_an_engine_without_a_setting_of_ours_is_asked_and_left_alone(
    engine: Engine, additional: object
) -> None:
    engine.check(additional)
    assert engine.choose(additional) == "Platform None 8"
    assert (engine.owner.checked, engine.installed) == ([additional], 0)


@pytest.mark.parametrize("additional", OURS, ids=str)
def test_the_adapter_sees_the_first_configuration_that_has_one(
    engine: Engine, additional: object
) -> None:
    engine.check({})
    engine.check(additional)
    assert engine.choose(additional) == "ours Platform None 8"
    assert (engine.owner.checked, engine.installed) == ([{}, additional], 1)


def test_a_worker_gets_the_adapter_when_it_builds_its_model(engine: Engine) -> None:
    assert engine.choose({}) == "Platform None 8"
    assert engine.choose(INT4) == "ours Platform None 8"
    assert engine.choose(INT4) == "ours Platform None 8"
    assert engine.installed == 1


def test_what_another_plugin_has_wrapped_stays_wrapped(engine: Engine) -> None:
    engine.wrap("theirs")
    assert engine.choose({}) == "theirs Platform None 8"
    engine.check(INT4)
    assert engine.choose(INT4) == "ours theirs Platform None 8"


def test_an_adapter_that_refuses_is_heard(engine: Engine) -> None:
    def refuse() -> None:
        raise ImportError("no adapter")

    class Platform(Base):
        """One to be changed."""

    wait_for_settings(Platform(), lambda: engine.config, refuse)
    # Each time: no engine starts without what it asks for.
    for _ in range(2):
        with pytest.raises(ImportError, match="no adapter"):
            Platform.check_and_update_config(SimpleNamespace(additional_config=INT4))


def test_loaded_again_it_asks_once(engine: Engine) -> None:
    method = vars(engine.owner)["check_and_update_config"]
    engine.wait()
    assert vars(engine.owner)["check_and_update_config"] is method


@pytest.mark.parametrize("variable", [None, "kvserving"])
def test_only_an_engine_that_names_the_plugin_gets_the_adapter_at_once(
    monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    class Platform(Base):
        """One to be changed."""

    installed: list[bool] = []
    adapter = SimpleNamespace(install=installed.append)
    monkeypatch.setattr(adapters, "import_module", lambda name: adapter)
    stand_in(monkeypatch, "vllm", __version__="0.32.0")
    stand_in(monkeypatch, "vllm.config", get_current_vllm_config=lambda: None)
    stand_in(monkeypatch, "vllm.platforms", current_platform=Platform())
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if variable is not None:
        monkeypatch.setenv("VLLM_PLUGINS", variable)
    register()
    assert installed == ([] if variable is None else [True])
    Platform.checked = []
    Platform.check_and_update_config(SimpleNamespace(additional_config={}))
    assert len(installed) == (0 if variable is None else 1)
    if variable is None:
        Platform.check_and_update_config(SimpleNamespace(additional_config=INT4))
        assert installed == [False]


UNSUPPORTED = ["0.31.2", "0.33.0", "0.3.20", "1.0.0", "0.1.dev1+g123"]


def load_into(monkeypatch: pytest.MonkeyPatch, version: str, **platforms: object) -> None:
    """Load the plugin into a vLLM of a version, in an environment that names no plugins."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    stand_in(monkeypatch, "vllm", __version__=version)
    stand_in(monkeypatch, "vllm.platforms", **platforms)
    register()


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Class of the platform of a vLLM that has no adapter and nothing of `vllm.config`."""

    class Platform(Base):
        """One to be changed."""

    Platform.checked = []
    load_into(monkeypatch, request.param, current_platform=Platform())
    return Platform


@pytest.mark.parametrize("other", UNSUPPORTED, indirect=True)
@pytest.mark.parametrize("additional", OURS, ids=str)
def test_a_setting_of_ours_is_refused_by_every_vllm_without_an_adapter(
    other: Any, additional: object
) -> None:
    # Each time: no engine starts without what it asks for.
    for _ in range(2):
        with pytest.raises(UnsupportedEngineError) as refused:
            other.check_and_update_config(SimpleNamespace(additional_config=additional))
        assert str(refused.value).startswith("--additional-config kvserving: ")
        assert all(f"{name}.x" in str(refused.value) for name in adapters.SUPPORTED)
    assert other.checked == []


@pytest.mark.parametrize("other", UNSUPPORTED, indirect=True)
@pytest.mark.parametrize("additional", NOT_OURS, ids=str)
def test_an_engine_without_a_setting_is_left_alone_by_every_vllm_without_an_adapter(
    other: Any, additional: object
) -> None:
    other.check_and_update_config(SimpleNamespace(additional_config=additional))
    assert other.checked == [additional]
    assert "get_attn_backend_cls" not in vars(other)
    method = vars(other)["check_and_update_config"]
    register()
    assert vars(other)["check_and_update_config"] is method


def test_a_configuration_without_the_flag_and_a_check_that_takes_more_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Platform:
        """A platform of another version."""

        @classmethod
        def check_and_update_config(cls, config: Any, strict: bool, *, again: bool) -> None:
            """Note it."""
            config.noted = (cls, strict, again)

    load_into(monkeypatch, "0.33.0", current_platform=Platform())
    config: Any = SimpleNamespace()
    check: Any = Platform.check_and_update_config
    check(config, True, again=False)
    assert config.noted == (Platform, True, False)


@pytest.mark.parametrize("platforms", [{}, {"current_platform": object()}], ids=["none", "odd"])
def test_a_vllm_that_cannot_be_asked_starts_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    platforms: dict[str, object],
) -> None:
    with caplog.at_level(logging.WARNING):
        load_into(monkeypatch, "1.0.0", **platforms)
    assert "--additional-config are ignored" in caplog.text
    assert "vLLM 1.0.0" in caplog.text


def test_what_waits_needs_neither_vllm_nor_an_adapter() -> None:
    code = (
        "import sys, kvserving_kernels.plugin.on_request; "
        "sys.exit(any(n in ('vllm', 'torch') or n.startswith('kvserving_kernels.plugin.adapters') "
        "for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
