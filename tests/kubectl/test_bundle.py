"""Support bundles: what is in them, and a hostile corpus of what must never be.

Every secret of the corpus is put wherever a cluster could hold it, and no file of the bundle may
have it.
"""

import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import yaml

from kubectlkit.fake import FakeApi, Ran
from kubectlkit.objects import condition, demo, event, pod, serving
from kvserving_kubectl.bundle.archive import write
from kvserving_kubectl.bundle.redact import Redactor
from kvserving_kubectl.errors import Forbidden, UsageError
from kvserving_kubectl.resources import DEPLOYMENTS, EVENTS, KVSERVINGS, KVTRIALS, PODS

PEM = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
RECOGNIZED = (
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "sk-proj-abcDEF123456ghiJKL7890",
    "sk-ant-REDACTED",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "gho_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghij_KLMNOPqrstuvwxyz",
    "glpat-xxxxYYYYzzzz11112222",
    "xoxb-123456789012-abcdefGHIJKL",
    "xapp-1-A111-222-bbb",
    "nvapi-abcdEFGHijklMNOP1234",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "pypi-AgEIcHlwaS5vcmcCJDU3",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "AIzaSyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "ya29.a0AfH6SMBx-yz_123",
    "SG.ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf09kqeF8tAmbihYzrnopKc1s5cr",
    "hvs.CAESIJ1234567890abcdefghij",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r_wW1g",
    "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "dGhpc0lzQVZlcnlMb25nQmFzZTY0U2VjcmV0VmFsdWUxMjM0NTY3ODkw==",
    "Q2xpZW50U2VjcmV0X1dpdGhfVW5kZXJzY29yZXNfMTIz",
)
"""Secrets that are known by their form, wherever they stand."""

NAMED = (
    "password={}", "PASSWORD: {}", "db_password = '{}'", '"api_key": "{}"', "api-key={}",
    "'api_key': ['{}']", "apikey: {}", "--api-key {}", "--api-key={}", "--hf-token={}",
    "--hf-token {}", "Authorization: Bearer {}", "authorization: Basic {}", "Bearer {}",
    '"Authorization": "Bearer {}"', "X-Auth-Token: {}", "x-api-key: {}", "cookie: session={}",
    "client_secret={}", "clientSecret: {}", "AWS_SECRET_ACCESS_KEY={}", "HF_TOKEN={}",
    "OPENAI_API_KEY='{}'", "token: {}", "access_token={}", "refresh_token: \"{}\"",
    "https://user:{}@example.com/path", "postgres://me:{}@db:5432/x", "redis://:{}@cache:6379",
    "https://x.blob.core.windows.net/a?sv=2020&sig={}", "https://x/?access_key={}&y=1",
    "https://s3/x?X-Amz-Signature={}", "wandb login key: api_key={}", "passphrase={}",
    "private_key: {}", "connection_string={}", "sessionid={}", "credentials: {}",
    "non-default args: {{'model': 'm', 'api_key': ['{}'], 'port': 8000}}",
    "Namespace(hf_token='{}', model='m')",
)  # fmt: skip
"""Places by whose name a secret of any form is known."""

FIELDS: tuple[Any, ...] = (
    {"token": "{}"}, {"accessToken": "{}"}, {"password": "{}"}, {"apiKey": "{}"},
    {"api_key": ["{}"]}, {"secret": {"a": {"token": "{}"}}}, {"HF_TOKEN": "{}"},
    {"authorization": "{}"}, {"auth": "{}"}, {"clientSecret": "{}"}, {"private-key": "{}"},
    {"note": '{"token":"{}"}'}, {"note": "password: my {} phrase"}, {"dsn": "{}"},
    {"env": [{"name": "X", "value": "{}"}]}, {"args": ["--api-key", "a", "{}"]},
    {"extraArgs": ["--hf-token={}"]}, {"command": ["sh", "-c", "serve --api-key {} --port 1"]},
)  # fmt: skip
"""Fields of an object that hold a secret of any form."""

PLAIN = "hunter2correcthorse"
PROMPT = "My diagnosis is rare and I live in Elm Street"
PROMPT_LINES = (
    "INFO 11-29 10:00:00 [logger.py:43] Received request cmpl-1: prompt: '{}', params: x",
    "(APIServer pid=1) INFO 11-29 10:00:00 [logger.py:43] Received request chat-1: params: {}",
    "INFO [logger.py] Generated response cmpl-1: output: '{}'",
    'DEBUG body {{"messages": [{{"role": "user", "content": "{}"}}]}}',
    '{{"level": "info", "prompt": "{}"}}',
    '{{"event": "request", "messages": [{{"role": "user", "content": "{}"}}]}}',
    '{{"inputs": "{}", "model": "m"}}',
    "ERROR bad request: prompt={}",
    "WARNING prompt is {}",
    "completion: {}",
    "INFO prompts: [\n{}\n  and more {}\nINFO next",
    'INFO prompt: "\n{{"symptom": "{}"}}\n[{}]"\nINFO next',
    "INFO prompt: x\nError: {}\n  File {}",
    '{{"level": "info", "message": "Received request cmpl-1: prompt: {}"}}',
    '{{"level": "info", "detail": {{"text": "messages=[{}]"}}}}',
)


def everywhere(text: str) -> FakeApi:
    """A cluster in which a text stands wherever somebody may have put it."""
    api = demo()
    found = serving(extra=text)
    found["metadata"]["annotations"] = {
        "note": text,
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"x": text}),
    }
    found["metadata"]["managedFields"] = [{"manager": text}]
    found["status"]["conditions"].append(condition("Degraded", "True", "InvalidSpec", text))
    found["status"]["lastDecision"]["message"] = text
    api.add(KVSERVINGS, found)
    api.add(EVENTS, event("PreflightFailed", f"the engine said: {text}"))
    engine = pod(
        args=["--model=m", text],
        command=["vllm", f"serve {text}"],
        env=[{"name": "MY_VALUE", "value": text}, {"name": "VLLM_LOGGING_LEVEL", "value": text}],
    )
    engine["status"]["containerStatuses"] = [
        {"name": "engine", "restartCount": 1, "lastState": {"terminated": {"message": text}}}
    ]
    api.add(PODS, engine)
    operator = pod("op-0")
    operator["metadata"]["namespace"] = "kvserving-system"
    operator["metadata"]["labels"] = {"app.kubernetes.io/name": "kvserving-operator"}
    operator["spec"]["containers"][0]["name"] = "operator"
    api.add(PODS, operator)
    deployment = {"metadata": {**operator["metadata"], "name": "op"}, "spec": {"x": text}}
    api.add(DEPLOYMENTS, deployment)
    stamp = "2027-01-15T08:00:00.123456789Z"
    log = "".join(f"{stamp} {line}\n" for line in text.splitlines() or [""])
    for name in ("chat-0/log", "chat-0/log/previous", "op-0/log"):
        api.texts[name] = f"{stamp} INFO begins\n{log}{stamp} INFO ends\n"
    api.texts["chat-0:8000/proxy/metrics"] = f'vllm:info{{note="{text}"}} 1\n'
    api.texts["op-0:9090/proxy/metrics"] = f"# {text}\n"
    return api


def bundle(api: FakeApi, path: Path, *more: str) -> dict[str, str]:
    """Files of a bundle by their path."""
    Ran(api)("support-bundle", "--file", str(path), *more)
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read().decode()
        return found


def leaks(files: dict[str, str], secret: str) -> list[str]:
    return [f"{name}: {text[max(0, text.find(secret) - 80):][:160]}"
            for name, text in files.items() if secret in text]  # fmt: skip


@pytest.mark.parametrize("secret", RECOGNIZED)
@pytest.mark.parametrize("frame", ["{}", "could not load with {}.", "x={}", '["{}"]', "a {}, b"])
def test_secrets_that_are_known_by_form_are_nowhere(
    secret: str, frame: str, tmp_path: Path
) -> None:
    files = bundle(everywhere(frame.format(secret)), tmp_path / "b.tar.gz")
    assert [] == leaks(files, secret)
    assert [] == leaks(files, secret[8:])


@pytest.mark.parametrize("frame", NAMED)
def test_secrets_that_are_known_by_name_are_nowhere(frame: str, tmp_path: Path) -> None:
    files = bundle(everywhere(frame.format(PLAIN)), tmp_path / "b.tar.gz")
    assert [] == leaks(files, PLAIN)


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_secrets_in_fields_that_are_named_so_are_taken_out(field: Any) -> None:
    body = json.loads(json.dumps(field).replace("{}", PLAIN))
    assert PLAIN not in json.dumps(Redactor().object({"spec": body}))
    assert PLAIN not in Redactor().log(json.dumps({"level": "info", "spec": body}))


@pytest.mark.parametrize("name", ["password", "token", "apiKey", "secret"])
def test_a_secret_may_be_a_number(name: str) -> None:
    assert "12345678" not in json.dumps(Redactor().value({name: 12_345_678}))
    assert "12345678" not in json.dumps(Redactor().value({name: "12345678"}))


@pytest.mark.parametrize(
    "name", ["maxNumBatchedTokens", "kvCacheTokens", "sinkTokens", "windowTokens", "token_ids",
             "max_tokens", "tokenizer", "tokens_per_second", "maxScheduledTokens"]
)  # fmt: skip
def test_numbers_of_tokens_of_text_stay(name: str) -> None:
    assert {name: 4096} == Redactor().value({name: 4096})
    assert f"{name}=4096" == Redactor().text(f"{name}=4096")


def test_an_engines_last_words_have_no_prompt() -> None:
    found = event("RolloutFailed", f"ended: Received request x: prompt: '{PROMPT}'")
    assert "Elm Street" not in json.dumps(Redactor().object(found))
    assert "ended: " in Redactor().object(found)["message"]


def test_keys_of_many_lines_are_nowhere(tmp_path: Path) -> None:
    text = f"-----BEGIN RSA PRIVATE KEY-----\n{PEM}\n{PEM[::-1]}\n-----END RSA PRIVATE KEY-----"
    files = bundle(everywhere(text), tmp_path / "b.tar.gz")
    assert [] == leaks(files, PEM)
    assert [] == leaks(files, PEM[::-1])
    assert "INFO ends" in files["namespaces/demo/logs/chat-0.engine.log"]


@pytest.mark.parametrize("line", PROMPT_LINES)
def test_prompts_and_answers_are_in_no_log(line: str, tmp_path: Path) -> None:
    files = bundle(everywhere(line.format(*[PROMPT] * 2)), tmp_path / "b.tar.gz")
    logs = {name: text for name, text in files.items() if "/logs/" in name}
    assert 3 == len(logs)
    assert [] == leaks(logs, "Elm Street")
    assert all("INFO begins" in text and "INFO ends" in text for text in logs.values())


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("HF_TOKEN", False), ("MY_VALUE", False), ("DB", False), ("OMP_NUM_THREADS", True),
        ("VLLM_LOGGING_LEVEL", True), ("VLLM_API_KEY", False), ("AWS_ACCESS_KEY_ID", False),
        ("KVSERVING_TOKEN", False), ("PYTHONUNBUFFERED", True), ("PATHS", False),
    ],
)  # fmt: skip
def test_only_variables_that_are_known_to_be_harmless_keep_their_value(
    name: str, kept: bool
) -> None:
    body = pod(env=[{"name": name, "value": "plainvalue"}])
    text = yaml.safe_dump(Redactor().object(body))
    assert kept == ("plainvalue" in text)
    assert name in text


def test_a_secret_behind_its_flag_is_taken_out() -> None:
    body = pod(args=["--api-key", PLAIN, "--port", "8000", "--hf-token", "--model", "m"])
    (container,) = Redactor().object(body)["spec"]["containers"]
    assert container["args"] == [
        "--api-key", "[redacted]", "--port", "8000", "--hf-token", "--model", "m",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=8192", "KVCacheTokens: 4096", "generation_tokens: 17",
        "vllm:prompt_tokens_total{model_name=\"m\"} 12", "tokens per second: 31.5",
        "prompt throughput: 12.1 tokens/s", "pvc://models/SmolLM2-135M-Instruct",
        "Meta-Llama-3.1-8B-Instruct-quantized.w4a16-Version2", "sha256:" + "0a1b2c3d" * 8,
        "https://example.com/path?page=2", "spec.engine.maxNumSeqs: must be at most 16",
        "2026-11-29T10:00:00Z", "api_key: None", "/usr/lib/python3.11/site-packages/vllm/engine.py",
    ],
)  # fmt: skip
def test_what_helps_stays(text: str) -> None:
    assert text == Redactor().text(text)


@hypothesis.given(st.text(), st.lists(st.text()))
def test_no_text_breaks_it(text: str, more: list[str]) -> None:
    redactor = Redactor()
    assert isinstance(redactor.text(text), str)
    assert isinstance(redactor.log("\n".join([text, *more])), str)
    value = redactor.value({"a": text, text: more, "env": [text, {"name": text, "value": text}]})
    assert isinstance(json.dumps(value), str)


@hypothesis.given(st.from_regex(r"\A[A-Za-z0-9_]{40,60}\Z"))
def test_long_words_of_mixed_characters_are_taken_out(word: str) -> None:
    mixed = any(c.isupper() for c in word) and any(c.islower() for c in word)
    hypothesis.assume(mixed and any(c.isdigit() for c in word))
    assert word not in Redactor().text(f"loaded {word} from disk")


def test_a_text_of_ones_own_is_taken_out(tmp_path: Path) -> None:
    api = everywhere("project-zebra is ours")
    files = bundle(api, tmp_path / "b.tar.gz", "--redact", "zebra")
    assert [] == leaks(files, "zebra")
    with pytest.raises(UsageError, match="--redact: expected a regular expression"):
        bundle(api, tmp_path / "c.tar.gz", "--redact", "(")


def test_neither_secrets_nor_config_maps_are_read(tmp_path: Path) -> None:
    read: list[str] = []

    class Watching(FakeApi):
        def list(self, resource: Any, *args: Any, **more: Any) -> Any:
            read.append(resource.plural)
            return super().list(resource, *args, **more)

        def get(self, resource: Any, *args: Any) -> Any:
            read.append(resource.plural)
            return super().get(resource, *args)

    api = Watching()
    api.objects, api.texts = everywhere("x").objects, everywhere("x").texts
    bundle(api, tmp_path / "b.tar.gz")
    assert "kvservings" in read
    assert not {"secrets", "configmaps"} & set(read)


def test_what_is_in_it_and_what_is_not(tmp_path: Path) -> None:
    api = everywhere("x")
    api.refused[("list", "nodes")] = Forbidden("list", "nodes", "")
    api.refused[("get", "pods/proxy")] = Forbidden("get", "pods/proxy", "demo")
    files = bundle(api, tmp_path / "b.tar.gz")
    for name in (
        "namespaces/demo/kvservings/chat.yaml", "namespaces/demo/kvtrials/chat-t1.yaml",
        "namespaces/demo/kvrollbackpolicies/careful.yaml", "namespaces/demo/pods/chat-0.yaml",
        "namespaces/demo/events.yaml", "namespaces/demo/logs/chat-0.engine.log",
        "namespaces/demo/logs/chat-0.engine.previous.log", "operator/logs/op-0.operator.log",
        "operator/deployments/op.yaml", "server-version.txt", "bundle.json",
    ):  # fmt: skip
        assert name in files
    assert "nodes of the cluster: forbidden: the verb list on nodes" in files["missing.txt"]
    assert "pods/proxy" in files["missing.txt"]
    about = json.loads(files["bundle.json"])
    assert about["missing"] == files["missing.txt"].splitlines()


def test_a_bundle_of_one_service_has_no_other(tmp_path: Path) -> None:
    api = everywhere("x")
    api.add(KVSERVINGS, serving("rag"))
    api.add(PODS, pod("rag-0", of="rag"))
    files = bundle(api, tmp_path / "b.tar.gz", "chat")
    assert [] == [name for name in files if "rag" in name]
    assert "namespaces/demo/kvtrials/chat-t1.yaml" in files


def test_only_its_owner_may_read_a_bundle_and_none_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    bundle(demo(), path)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    with pytest.raises(UsageError, match="File exists"):
        bundle(demo(), path)


def test_no_name_leads_out_of_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    write(path, "f", {"../../etc/passwd": "x", "/abs/./y": "x"}, 0)
    with tarfile.open(path) as archive:
        assert ["f/etc/passwd", "f/abs/y"] == archive.getnames()


def test_a_trial_of_another_service_is_left_out(tmp_path: Path) -> None:
    api = demo()
    other = api.get(KVTRIALS, "demo", "chat-t1")
    other["metadata"]["name"], other["spec"]["servingRef"] = "rag-t1", {"name": "rag"}
    api.add(KVTRIALS, other)
    files = bundle(api, tmp_path / "b.tar.gz", "chat")
    assert "namespaces/demo/kvtrials/rag-t1.yaml" not in files
