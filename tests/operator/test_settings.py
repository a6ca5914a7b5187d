"""Settings come from the environment, and bad ones are named."""

import pytest

from kvserving_operator.errors import SettingsError
from kvserving_operator.settings import Settings, settings_from_env


def test_defaults_hold_where_nothing_is_set() -> None:
    assert Settings() == settings_from_env({"PATH": "/bin"})


def test_variables_are_read_and_foreign_ones_ignored() -> None:
    settings = settings_from_env(
        {
            "KVSERVING_TICK_SECONDS": "2.5",
            "KVSERVING_WATCH_NAMESPACES": "a, b,",
            "KVSERVING_WEB_HOSTS": "kv.example.com,,b.example ",
            # Kubernetes sets these for a Service named kvserving-operator.
            "KVSERVING_OPERATOR_PORT": "tcp://10.96.0.1:8080",
            "KVSERVING_OPERATOR_SERVICE_HOST": "10.96.0.1",
        }
    )
    assert 2.5 == settings.tick_seconds
    assert ("a", "b") == settings.namespaces
    assert ("kv.example.com", "b.example") == settings.hosts


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KVSERVING_TICK_SECONDS", "soon"),
        ("KVSERVING_METRICS_LISTEN_PORT", "70000"),
        ("KVSERVING_WEB_LISTEN_PORT", "-1"),
    ],
)
def test_a_bad_one_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings_from_env({name: value})
    assert name in str(error.value)
    assert value in str(error.value)
