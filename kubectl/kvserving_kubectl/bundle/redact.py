"""What must never leave a cluster, taken out of objects and texts; pure.

Two nets, each wide on purpose. By place: values of environment variables that are not known to be
harmless, arguments and fields that are named like a secret, annotations that repeat a manifest,
prompts and answers. By form: tokens, keys and passwords wherever they stand, as in a message. What
is taken out is replaced by a word that says so, so that a reader sees that something was there.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

GONE = "[redacted]"
PROMPT_GONE = "[prompt redacted]"

_TELLTALE = (
    r"(?:[A-Za-z0-9_.-]*(?:passw(?:or)?d|passphrase|passwd|secret|token|api[-_]?key"
    r"|access[-_]?key|private[-_]?key|credential|authorization|cookie|session[-_]?id|signature|bearer|dsn"
    r"|connection[-_]?string|client[-_]?key|auth)[A-Za-z0-9_.-]*)"
)
"""A name with one of these words in it is that of a secret."""
_COUNTED = re.compile(
    r"tokens(?:$|[_-]?(?:per|count|total|limit))|tokens?[_-]?ids?$|tokeniz|max|num|batched|budget"
    r"|window|sink|chunk|iteration|(?:cache|generation|prompt|scheduled)[_-]?tokens",
    re.IGNORECASE,
)
"""Words by which a name with `token` in it is of tokens of text, and its number no secret."""

HARMLESS_ENV = re.compile(
    r"^(OMP_NUM_THREADS|HOME|PATH|HF_HOME|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|PYTHON[A-Z_]*"
    r"|CUDA_VISIBLE_DEVICES|NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES)|NCCL_[A-Z_]+"
    r"|TORCH(INDUCTOR)?_[A-Z_]+|VLLM_(CPU|LOGGING|USE|ATTENTION|WORKER|CACHE|PLUGINS|TARGET)[A-Z_]*"
    r"|KVSERVING_(LOG|NAMESPACE|ENGINE|SETTINGS|METRICS|WATCH|LEASE)[A-Z_]*|LOG_LEVEL|TZ|LANG"
    r"|LC_[A-Z]+)$"
)
"""Variables whose plain values say how an engine runs and can hold no secret of their own."""

DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
PROMPT_KEYS = frozenset(
    {
        "prompt", "prompts", "messages", "completion", "completions", "input", "inputs",
        "prompt_token_ids", "output_text", "generated_text", "conversation", "system_prompt",
        "reference", "references", "outputs",
    }
)  # fmt: skip
"""Fields that hold what users ask and what models answer."""

_TOKENS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        # Private keys and certificates, in one line or many.
        (r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
        # JSON web tokens.
        (r"\beyJ[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*){0,4}", 0),
        # Tokens that begin with the name of who gives them out.
        (r"\bhf_[A-Za-z0-9]{6,}", 0),
        (r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}", 0),
        (
            r"\b(?:gh[pousr]|github_pat|glpat|gldt|npm|pypi|nvapi|dop_v1|shpat)"
            r"[-_][A-Za-z0-9_-]{8,}",
            0,
        ),
        (r"\bxox[a-z]-[A-Za-z0-9-]{6,}", 0),
        (r"\bhv[sbr]\.[A-Za-z0-9_-]{6,}", 0),
        (r"\bxapp-[A-Za-z0-9-]{6,}", 0),
        (r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{12,}", 0),
        (r"\bAIza[A-Za-z0-9_-]{20,}", 0),
        (r"\bya29\.[A-Za-z0-9_-]+", 0),
        (r"\bSG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}", 0),
        # Long words of mixed letters and figures: no digest is spelled so, and names of models
        # have dashes.
        (
            r"(?<![A-Za-z0-9+_-])(?=[A-Za-z0-9+_-]*[A-Z])(?=[A-Za-z0-9+_-]*[a-z])"
            r"(?=[A-Za-z0-9+_-]*[0-9])(?=[A-Za-z0-9+_-]*[A-Za-z0-9+_]{16})"
            r"[A-Za-z0-9+_-]{32,}={0,2}",
            0,
        ),
        (
            r"(?<![A-Za-z0-9+/])(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[a-z])"
            r"(?=[A-Za-z0-9+/]*[0-9])[A-Za-z0-9+/]{40,}={1,2}",
            0,
        ),
    )
)
_SCHEMES = re.compile(
    r"\b(Bearer|Basic|Token|ApiKey|Digest)(\s+)(?!is\b|the\b|was\b|for\b)[^\s\"',;]{6,}",
    re.IGNORECASE,
)
_USER_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@\"']+@", re.IGNORECASE)
_IN_QUERY = re.compile(
    r"([?&](?:[A-Za-z0-9_.-]*(?:token|key|secret|sig|signature|password|auth|credential|code)"
    r"[A-Za-z0-9_.-]*)=)[^&\s\"']+",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"(?P<name>(?<![A-Za-z0-9_.-]){_TELLTALE})(?P<join>[\"']?\s*(?:[:=]|=>)\s*)"
    r"(?P<value>\[[^\]\n]*\]|\{[^}\n]*\}|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'"
    r"|[^\s,;}\])\"']+(?:\s+(?=[^\s=:]+$)[^\s]+)?)",
    re.IGNORECASE,
)
_PHRASE = re.compile(
    r"(pass(?:word|wd|phrase)s?[\"']?\s*[:=]\s*)(?![\s\"'\[{])[^\n,;\"']+", re.IGNORECASE
)
"""A password may have blanks in it."""
_FLAG = re.compile(
    rf"(?P<name>--?{_TELLTALE})(?P<join>\s+)(?P<value>(?!-)[^\s\"']+)", re.IGNORECASE
)
_PROMPT = re.compile(
    r"(?:\bprompts?\b|\bmessages\b|\bprompt_token_ids\b|\bcompletions?\b|\boutput_text\b"
    r"|\bgenerated_text\b|\bconversation\b|\bcontent\b|\binputs?\b)[\"']?\s*[:=]"
    r"|Received request |Generated response |\bprompt is\b",
    re.IGNORECASE,
)
_LOG_HEAD = re.compile(
    r"^(?:\([A-Za-z_ ]+\S* pid=\d+\)\s|\[?\d{4}-\d{2}-\d{2}[ T]"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|TRACE)[: \[]|Traceback \(most recent call last\))"
)
"""How a new record of a log begins."""
_LOG_KEYS = frozenset({"level", "severity", "time", "timestamp", "schema", "asctime"})
"""Fields of a record of a log that is JSON."""
_KEY_BEGINS, _KEY_ENDS = "-----BEGIN ", "-----END "
_NUMBER = re.compile(r"^[\"']?-?[0-9][0-9.,_e+-]*[A-Za-z%]{0,2}[\"']?$")
_PLAIN_WORDS = ("none", "null", "true", "false", "auto", "unset", "default", "disabled", "enabled")


class Redactor:
    """Takes secrets and prompts out; `extra` are texts of a user's own that must go as well."""

    def __init__(self, extra: Sequence[re.Pattern[str]] = ()) -> None:
        self._extra = tuple(extra)

    def text(self, text: str) -> str:
        """A text without what looks like a secret."""
        for pattern in self._extra:
            text = pattern.sub(GONE, text)
        for pattern in _TOKENS:
            text = pattern.sub(GONE, text)
        text = _SCHEMES.sub(rf"\1\2{GONE}", text)
        text = _USER_IN_URL.sub(rf"\1{GONE}@", text)
        text = _IN_QUERY.sub(rf"\1{GONE}", text)
        text = _PHRASE.sub(rf"\1{GONE}", text)
        text = _FLAG.sub(_without_value, text)
        return _NAMED.sub(_without_value, text)

    def log(self, text: str) -> str:
        """A log without secrets, and without what users ask and models answer."""
        lines = text.splitlines()
        kept = [line for _, line in self.lines([""] * len(lines), lines)]
        return "\n".join(kept) + ("\n" if kept else "")

    def lines(self, stamps: Sequence[str], lines: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Lines of a log, each with its stamp.

        A line that has a prompt loses all behind its name, and the lines that go on with it are
        left out; so are those of a key in many lines.
        """
        in_prompt = in_key = False
        for stamp, line in zip(stamps, lines, strict=True):
            if in_key:
                in_key = _KEY_ENDS not in line
                continue
            if _KEY_BEGINS in line and _KEY_ENDS not in line:
                in_key = True
                yield stamp, f"{self.text(line[: line.index(_KEY_BEGINS)])}{GONE}"
                continue
            document = _as_json(line)
            if document is not None and not (in_prompt and _LOG_KEYS.isdisjoint(document)):
                in_prompt = False
                kept = _without_prompts(self.value(document))
                yield stamp, json.dumps(kept, ensure_ascii=False)
                continue
            found = _PROMPT.search(line)
            if found:
                in_prompt = True
                yield stamp, f"{self.text(line[: found.start()])}{PROMPT_GONE}"
            elif not in_prompt or _LOG_HEAD.match(line):
                in_prompt = False
                yield stamp, self.text(line)

    def object(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """A Kubernetes object without secrets, copies of itself and notes of its managers."""
        found: dict[str, Any] = self.value(dict(manifest))
        metadata = found.get("metadata")
        if isinstance(metadata, dict):
            metadata.pop("managedFields", None)
            annotations = metadata.get("annotations")
            if isinstance(annotations, dict):
                for name in DROPPED_ANNOTATIONS:
                    annotations.pop(name, None)
        return found

    def value(self, value: Any, name: str = "") -> Any:
        """Any part of an object; `name` is the key that it stands under."""
        if name.lower() in PROMPT_KEYS:
            return PROMPT_GONE
        if name in ("env", "environment") and isinstance(value, list):
            return [self._variable(each) for each in value]
        if name in ("args", "command", "extraArgs") and isinstance(value, list):
            return self._arguments(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item, name) for item in value]
        if isinstance(value, bool) or value is None:
            return value
        if _is_secret_name(name) and str(value).lower() not in _PLAIN_WORDS:
            return GONE
        if not isinstance(value, str):
            return value
        # An engine's last words may have a request in them.
        return self.text(_without_prompts(value) if name == "message" else value)

    def _variable(self, entry: Any) -> Any:
        """One environment variable: its value goes unless its name is known to be harmless."""
        if not isinstance(entry, Mapping) or "value" not in entry:
            return self.value(entry)
        name = str(entry.get("name", ""))
        value = str(entry["value"])
        kept = HARMLESS_ENV.match(name) is not None
        return {**self.value(entry), "name": name, "value": self.text(value) if kept else GONE}

    def _arguments(self, arguments: Sequence[Any]) -> list[Any]:
        """Arguments of a program; a secret one may stand behind its flag."""
        found: list[Any] = []
        hidden = False
        for each in arguments:
            text = str(each)
            if hidden and not text.startswith("-"):
                found.append(GONE)
                continue
            flag, equals, value = text.partition("=")
            named = flag.startswith("-") and _is_secret_name(flag.lstrip("-"))
            hidden = named and not equals
            if named and equals and value.lower() not in _PLAIN_WORDS:
                found.append(f"{flag}={GONE}")
            else:
                found.append(self.text(text))
        return found


def _is_secret_name(name: str) -> bool:
    """Whether something of this name is a secret, and not a number of tokens of text."""
    if re.fullmatch(_TELLTALE, name, re.IGNORECASE) is None:
        return False
    return not ("token" in name.lower() and _COUNTED.search(name) and not _other_secret(name))


def _other_secret(name: str) -> bool:
    rest = re.sub("token", "", name, flags=re.IGNORECASE)
    return re.fullmatch(_TELLTALE, rest, re.IGNORECASE) is not None


def _without_prompts(value: Any) -> Any:
    """A value whose texts end where one of them comes to a prompt."""
    if isinstance(value, Mapping):
        return {key: _without_prompts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_prompts(item) for item in value]
    found = _PROMPT.search(value) if isinstance(value, str) and value != PROMPT_GONE else None
    return f"{value[: found.start()]}{PROMPT_GONE}" if found else value


def _without_value(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    bare = value.strip("\"'")
    counts = "token" in name.lower() and _COUNTED.search(name) and not _other_secret(name)
    if counts and _NUMBER.match(bare):
        return found[0]
    if bare.lower() in _PLAIN_WORDS or bare == GONE or not bare:
        return found[0]
    return f"{name}{found['join']}{GONE}"


def _as_json(line: str) -> Any:
    """The object of a line that is one; None for all others."""
    if not line.startswith("{"):
        return None
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
