"""Engines as the operator sees them: the runtime API and metrics of each pod's address."""

import json
from collections.abc import Sequence
from typing import Any

import httpx

from kvserving_kernels.formats.flags import EVICTION_FIELD, OBJECT, dtype_in
from kvserving_tuner.probes.client import NOT_FINITE
from operatorkit.answers import WordModel
from operatorkit.cluster import Clock


class Engines:
    """HTTP of all engines: runtime API and metrics, by pod address."""

    def __init__(self) -> None:
        self.caps: dict[str, int] = {}
        self.dtypes: dict[str, str] = {}
        self.model_dtype = "bfloat16"
        self.weights: dict[str, str] = {}
        """Hashes of what engines have loaded, by address."""
        self.offers: tuple[str, ...] = ("auto", "bfloat16", "int8", "int4", "int2")
        self.unavailable: dict[str, str] = {}
        """Formats, or policies of eviction, that engines say they cannot have, with the reason."""
        self.evictions: dict[str, dict[str, Any]] = {}
        self.failing: dict[str, str] = {}
        """What engines that cannot switch say, by address."""
        self.dying: set[str] = set()
        """Engines that end when they are told to switch."""
        self.running = 4
        self.preemptions = 0
        self.down: set[str] = set()
        self.refusing: set[str] = set()
        self.tokens: set[str] = set()
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.worse: dict[str, float] = {"int8": 0.001, "int4": 0.03, "int2": 0.4}
        """Nats per token by which a prompt is less likely in a format than in 16 bits."""
        self.worse_models: dict[str, float] = {}
        """The same of engines with another model or program, by address."""
        self.vocabularies: dict[str, int] = {}
        """First token of what engines with another tokenizer make of a text, by address."""
        self.no_numbers: set[str] = set()
        """Formats through which likelihoods are no numbers."""
        self.probe_error: httpx.Response | None = None
        self.finished = 9
        self.errors: dict[str, int] = {}
        """Requests that engines have failed, by address."""
        self.counts_errors = True
        self.hidden: set[str] = set()
        """Metrics that engines do not export."""
        self.prompts: list[str] = []
        """Texts that were tokenized."""
        self.prompt_tokens = 400
        self.model = WordModel()
        self.clueless = False
        """Whether the model knows no answer, whatever its cache holds."""
        self.confused: set[str] = set()
        """Formats through which it knows none."""
        self.dumb: dict[str, str] = {}
        """What engines say to everything, by format."""
        self.answer_error: httpx.Response | None = None
        self.seconds_per_answer = 0.0
        self.clock: Clock | None = None
        """Goes on while an answer is computed."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Completions, by address."""

    def start(self, host: str, args: Sequence[str]) -> None:
        """Let an engine come up with the KV cache that its arguments name, unless it runs."""
        self.caps.setdefault(host, 16)
        named = dict(arg.split("=", 1) for arg in args if "=" in arg)
        dtype = dtype_in(named.get("--additional-config")) or named.get("--kv-cache-dtype")
        if dtype is not None:
            self.dtypes.setdefault(host, dtype)
        ours = json.loads(named.get("--additional-config", "{}")).get(OBJECT, {})
        if EVICTION_FIELD in ours:
            self.evictions.setdefault(host, ours[EVICTION_FIELD])

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; refuse the connection of an engine that is down."""
        host = request.url.host
        if host in self.down or host not in self.caps:
            raise httpx.ConnectError("connection refused", request=request)
        if request.url.path == "/metrics":
            answered = sum(each == host for each, _ in self.asked)
            failed = self.errors.get(host, 0) if self.counts_errors else None
            counts = self.finished + answered, failed
            text = exposition(self.running, self.preemptions, *counts)
            lines = (
                line for line in text.splitlines(keepends=True)
                if not line.startswith(tuple(self.hidden))
            )  # fmt: skip
            return httpx.Response(200, text="".join(lines))
        if request.url.path == "/tokenize":
            body = json.loads(request.content)
            self.prompts.append(str(body.get("prompt", "")))
            if "chat_template_kwargs" in body:
                text = " ".join(message["content"] for message in body["messages"])
                return httpx.Response(200, json={"tokens": self.model.tokens(text)})
            first = self.vocabularies.get(host, 0)
            tokens = list(range(first, first + self.prompt_tokens))
            return httpx.Response(200, json={"tokens": tokens})
        if request.url.path == "/v1/completions":
            return self.answer_error or self._complete(host, json.loads(request.content))
        self.tokens.add(request.headers.get("Authorization", ""))
        if request.url.path.endswith("/probe"):
            return self.probe_error or self._probe(host, json.loads(request.content))
        if request.method == "PATCH":
            body = json.loads(request.content)
            self.patches.append((host, body))
            if host in self.refusing:
                fault = {"field": "max_active_seqs", "expected": "1 to 16", "got": "99"}
                return httpx.Response(422, json={"error": {**fault, "message": "out of bounds"}})
            policy = body.get("eviction", {}).get("policy")
            for name in {body.get("kv_cache_dtype"), policy} & self.unavailable.keys():
                fault = {"field": "kv_cache_dtype", "expected": "what fits", "got": name}
                message = f"{name}: {self.unavailable[name]}"
                return httpx.Response(422, json={"error": {**fault, "message": message}})
            if "kv_cache_dtype" in body and host in self.dying:
                raise httpx.RemoteProtocolError("server disconnected", request=request)
            if "kv_cache_dtype" in body and host in self.failing:
                return httpx.Response(500, json={"error": {"message": self.failing[host]}})
            self.caps[host] = body.get("max_active_seqs", self.caps[host])
            dtype = body.get("kv_cache_dtype", self.dtypes.get(host, self.model_dtype))
            self.dtypes[host] = self.model_dtype if dtype == "auto" else dtype
            if "eviction" in body:
                self.evictions[host] = body["eviction"]
        return httpx.Response(200, json=self._document(host))

    def _probe(self, host: str, body: dict[str, Any]) -> httpx.Response:
        dtype = body.get("as_dtype") or self.dtypes.get(host, self.model_dtype)
        known = ("auto", *self.offers, self.dtypes.get(host, self.model_dtype))
        if dtype not in known:
            fault = {"field": "as_dtype", "expected": ", ".join(known), "got": dtype}
            message = f"as_dtype: expected one of {fault['expected']}, got {dtype}"
            return httpx.Response(422, json={"error": {**fault, "message": message}})
        if dtype in self.no_numbers:
            error = {"reason": NOT_FINITE, "message": "a likelihood is no number"}
            return httpx.Response(500, json={"error": error})
        skip, count = body["skip"], len(body["token_ids"])
        worse = self.worse.get(dtype, 0.0) + self.worse_models.get(host, 0.0)
        logprobs = [None] * skip + [-2.0 - worse] * (count - skip)
        return httpx.Response(200, json={"logprobs": logprobs, "dtype": dtype})

    def _complete(self, host: str, body: dict[str, Any]) -> httpx.Response:
        self.asked.append((host, body))
        if self.clock is not None:
            self.clock.advance(self.seconds_per_answer)
        knows = not self.clueless and self.dtypes.get(host, self.model_dtype) not in self.confused
        eviction = self.evictions.get(host, {"policy": "None"})
        text = self.model.answer(body["prompt"], eviction) if knows else " I do not know."
        text = self.dumb.get(self.dtypes.get(host, self.model_dtype), text)
        return httpx.Response(200, json={"choices": [{"text": text}]})

    def _document(self, host: str) -> dict[str, Any]:
        dtype = self.dtypes.get(host, self.model_dtype)
        document = runtime_document(self.caps[host], dtype, self.offers)
        document["startup"] |= {"dtype": self.model_dtype, "weights": self.weights.get(host)}
        document["effective"]["eviction"] = self.evictions.get(host, {"policy": "None"})
        document["envelope"]["eviction"] = {
            "values": ["None", "StreamingLLM"],
            "sink_tokens": {"minimum": 0, "maximum": 1024, "default": 4},
            "window_tokens": {"minimum": 128, "maximum": 1024},
        }
        for field in ("kv_cache_dtype", "eviction"):
            self._without_unavailable(document["envelope"].get(field, {"values": []}))
        return document

    def _without_unavailable(self, offer: dict[str, Any]) -> None:
        reasons = {
            name: self.unavailable[name] for name in offer["values"] if name in self.unavailable
        }
        if reasons:
            offer["values"] = [name for name in offer["values"] if name not in reasons]
            offer["unavailable"] = reasons


HISTOGRAMS = ("vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds")


def exposition(running: int, preemptions: int, finished: int = 9, failed: int | None = 0) -> str:
    """Metrics of an engine in vLLM's names."""
    labels = '{engine="0",model_name="tiny"}'
    values = {
        "vllm:num_requests_running": running,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:num_preemptions_total": preemptions,
        "vllm:generation_tokens_total": 1000 + 16 * (finished - 9),
        "vllm:prompt_tokens_total": 1000,
        "vllm:prefix_cache_queries_total": 0,
        "vllm:prefix_cache_hits_total": 0,
        "kvserving:max_active_seqs": 16,
    }
    lines = [f"{name}{labels} {value}" for name, value in values.items()]
    for histogram in HISTOGRAMS:
        lines += [
            f'{histogram}_bucket{{engine="0",le="+Inf",model_name="tiny"}} 0',
            f"{histogram}_sum{labels} 0",
            f"{histogram}_count{labels} 0",
        ]
    reasons = {"stop": finished, "error": failed}
    lines += [
        f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="tiny"}} {n}'
        for reason, n in reasons.items()
        if n is not None
    ]
    lines.append('vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="64"} 1')
    return "\n".join(lines) + "\n"


def runtime_document(
    cap: int, dtype: str = "bfloat16", offers: Sequence[str] = (), startup_cap: int = 16
) -> dict[str, Any]:
    """What an engine's runtime API answers; `offers` are the formats that it takes live."""
    envelope: dict[str, Any] = {"max_active_seqs": {"minimum": 1, "maximum": startup_cap}}
    if offers:
        envelope["kv_cache_dtype"] = {"values": list(offers)}
    return {
        "api_version": "v1",
        "effective": {
            "kv_cache_dtype": dtype,
            "max_active_seqs": cap,
            "max_scheduled_tokens": 1024,
            "eviction": {"policy": "None"},
        },
        "envelope": envelope,
        "capacity": {
            "kv_cache_tokens": {"int8": 15872, "int4": 29184}.get(dtype, 8192),
            "blocks": 64,
            "block_size": 128,
            "bytes_per_token": 2880.5,
            "kv_cache_bytes": 64 << 20,
            "max_concurrency": 8.0,
        },
        "versions": {"vllm": "0.32.0", "plugin": "0.1.0"},
        "startup": {"max_num_seqs": startup_cap, "dtype": "bfloat16"},
        "last_change": None,
    }
