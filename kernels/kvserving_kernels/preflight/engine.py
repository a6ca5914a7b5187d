"""The checks that vLLM itself makes: its parser, its argument rules, its configuration.

Loading vLLM takes most of a preflight's time, so this comes last.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from kvserving_kernels.errors import UnsupportedEngineError, UnsupportedKVDTypeError
from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.host import Host
from kvserving_kernels.preflight.model import is_local

_ENGINE_FIELD: Final = "engine"
_UNRECOGNIZED: Final = "unrecognized arguments: "


class _ParserError(Exception):
    """What the parser would have printed before it ended the process."""


def check_with_vllm(arguments: Sequence[str], host: Host) -> Finding | tuple[str, ...]:
    """Have vLLM judge the arguments: a finding, or what could not be judged here."""
    has_device = _settle_platform()
    mismatch = accelerator_finding(has_device, host)
    if mismatch is not None:
        return mismatch
    from vllm import envs

    wrong = environment_finding(envs.environment_variables, os.environ)
    if wrong is not None:
        return wrong
    try:
        parser, parsed = _parse(arguments)
    except UnsupportedEngineError as error:
        return Finding(_ENGINE_FIELD, Reason.ENGINE_VERSION_UNSUPPORTED, str(error))
    except _ParserError as error:
        return parser_finding(str(error), ())
    if isinstance(parsed, Finding):
        return parsed
    if not has_device:
        return ("configuration: this pod has no accelerator",)
    return _configure(parsed, tuple(parser._option_string_actions))


def _settle_platform() -> bool:
    """Whether vLLM finds its accelerator here; without one it is told to parse as for a CPU.

    vLLM cannot even build its parser on a platform that it does not know, and flags are the same
    on all. It must be settled before anything else of vLLM is imported.
    """
    from vllm import platforms

    if not platforms.current_platform.is_unspecified():
        return True
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    platforms._current_platform = None
    return False


def _parse(arguments: Sequence[str]) -> tuple[Any, Any]:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    parser.error = _raise
    flags = tuple(parser._option_string_actions)
    try:
        parsed = parser.parse_args(list(arguments))
        parsed.model = parsed.model_tag or parsed.model
        validate_parsed_serve_args(parsed)
    except _ParserError as error:
        return parser, parser_finding(str(error), flags)
    except SystemExit:
        return parser, Finding("--help", Reason.INVALID_FLAG, "the arguments do not start a server")
    # vLLM's own rules raise any of ValueError, TypeError and KeyError.
    except Exception as error:
        return parser, refusal(error, flags)
    return parser, parsed


def _raise(message: str) -> NoReturn:
    raise _ParserError(message)


def _configure(parsed: Any, flags: Sequence[str]) -> Finding | tuple[str, ...]:
    from vllm.engine.arg_utils import AsyncEngineArgs

    _inspect_in_process()
    try:
        AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    except UnsupportedKVDTypeError as error:
        return Finding("--kv-cache-dtype", Reason.KV_DTYPE_UNSUPPORTED, str(error))
    except Exception as error:
        # A hub that this pod cannot reach, or a cache it lacks, says nothing about the engine.
        if not is_local(parsed.model) and _is_about_reaching(error):
            return (f"configuration: {parsed.model} cannot be read from here ({error})",)
        return refusal(error, flags)
    return ()


def _inspect_in_process() -> None:
    """Spare the process that vLLM starts only to keep CUDA out of a server's own."""
    from vllm.model_executor.models import registry

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()


def _is_about_reaching(error: Exception) -> bool:
    module = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or module in ("huggingface_hub", "requests", "httpx")


def accelerator_finding(has_device: bool, host: Host) -> Finding | None:
    """An engine without the device that it is built for, here and where it is to run."""
    if has_device or host.gpus != 0:
        return None
    message = "accelerator: the engine in this image is built for GPUs, got a pod without one"
    return Finding("accelerator", Reason.ACCELERATOR_MISMATCH, message)


def environment_finding(
    readers: Mapping[str, Callable[[], object]], environment: Mapping[str, str]
) -> Finding | None:
    """First variable that is set to what vLLM cannot read; vLLM reads most of them much later."""
    for name in sorted(environment.keys() & readers.keys()):
        try:
            readers[name]()
        except (ValueError, TypeError, KeyError) as error:
            message = f"environment variable {name}={environment[name]!r}: {_plain(error)}"
            return Finding(name, Reason.ENVIRONMENT_INVALID, message)
    return None


def parser_finding(message: str, flags: Iterable[str]) -> Finding:
    """Finding for what vLLM's argument parser says."""
    if message.startswith(_UNRECOGNIZED):
        words = message.removeprefix(_UNRECOGNIZED).split()
        name = words[0].partition("=")[0] if words else ""
        near = difflib.get_close_matches(name, list(flags), n=1, cutoff=0.75)
        hint = f"; did you mean {near[0]}?" if near else ""
        return Finding(name, Reason.UNKNOWN_FLAG, f"vLLM does not know {name}: {message}{hint}")
    match = re.match(r"argument ([^:]+): ", message)
    name = match.group(1).split("/")[0] if match else _named_flag(message, flags)
    return Finding(name, Reason.INVALID_FLAG, f"vLLM refuses {name or 'its arguments'}: {message}")


def refusal(error: Exception, flags: Iterable[str]) -> Finding:
    """Finding for what vLLM raises when it puts its configuration together."""
    message = _plain(error)
    if "architectures" in message.lower() and "not supported" in message:
        return Finding("model", Reason.ARCHITECTURE_UNSUPPORTED, message)
    return Finding(_named_flag(message, flags), Reason.ENGINE_REFUSED, message)


def _plain(error: Exception) -> str:
    """Message of an error on one line; pydantic's wrap the one that says why."""
    details = getattr(error, "errors", None)
    if callable(details):
        parts = [str(detail.get("msg", "")) for detail in details()]
        message = "; ".join(part.removeprefix("Value error, ") for part in parts if part)
    else:
        message = str(error)
    return " ".join(message.split()) or type(error).__name__


def _named_flag(message: str, flags: Iterable[str]) -> str:
    """First flag that a message names, as a flag or as the setting behind it; "" for none."""
    known = set(flags)
    for word in re.findall(r"--[a-z][a-z0-9-]+|\b[a-z]+(?:_[a-z]+)+\b", message):
        flag = word if word.startswith("--") else f"--{word.replace('_', '-')}"
        if flag in known:
            return flag
    return ""
