"""Check manifests without a cluster, by the CRDs' own schemas and rules.

With a model's configuration it also tells whether the KV cache holds what the spec promises.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from kvserving_kubectl.context import Context
from kvserving_kubectl.errors import Faulty, UsageError
from kvserving_kubectl.options import add_output
from kvserving_kubectl.output import document, say, titled
from kvserving_kubectl.validation import capacity, check
from kvserving_kubectl.validation.documents import Document, Fault, read


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_files(parser)
    add_output(parser)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Manifests, and the model that they are about."""
    parser.add_argument("file", nargs="*", metavar="FILE", help="file or folder; - for stdin")
    parser.add_argument(
        "-f", "--filename", action="append", default=[], metavar="FILE",
        help="the same, spelled as kubectl does; may be repeated",
    )  # fmt: skip
    parser.add_argument("-R", "--recursive", action="store_true", help="folders with what is below")
    add_model(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, for its capacity."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the model's config.json or folder"
    )
    parser.add_argument("--gpu", default="", help="where kvCacheMemory is not set, such as H100")
    parser.add_argument("--weights-gib", type=float, help="default: what the folder's index says")


def files_of(options: argparse.Namespace) -> list[str]:
    """Files that were named; UsageError where none was."""
    named = [*options.file, *options.filename]
    if not named:
        raise UsageError("expected files, folders, or - for the standard input")
    return named


def run(context: Context) -> None:
    """Print what is wrong; raises Faulty where anything is."""
    options = context.options
    faults: list[Fault] = []
    good: list[Document] = []
    others = 0
    for found in read(files_of(options), recursive=options.recursive):
        if isinstance(found, Fault):
            faults.append(found)
        elif not check.is_ours(found):
            others += 1
        elif its := list(check.faults(found)):
            faults += its
        else:
            good.append(found)
    fits: dict[str, tuple[capacity.Fit, ...]] = {}
    if options.config is not None:
        model = capacity.Model.read(options.config, options.weights_gib)
        for each in tuple(good):
            if each.body["kind"] == "KVServing":
                spec = check.stored(each)["spec"]
                fits[f"{each.file}: {each.title}"] = found_fits = capacity.fits(
                    spec, model, options.gpu
                )
                told = capacity.shortfall(spec, found_fits)
                if told:
                    faults.append(each.fault(("spec", "engine", "kvCacheMemory"), told))
                    good.remove(each)
    _show(context, good, others, faults, fits)
    if faults:
        raise Faulty("")


def _show(
    context: Context,
    good: list[Document],
    others: int,
    faults: list[Fault],
    fits: dict[str, tuple[capacity.Fit, ...]],
) -> None:
    if context.options.output != "table":
        answer = {
            "valid": not faults,
            "checked": [f"{each.file}: {each.title}" for each in good],
            "skipped": others,
            "faults": [asdict(fault) for fault in faults],
            "capacity": {title: [fit.to_json() for fit in rows] for title, rows in fits.items()},
        }
        document(context.out, context.options.output, answer)
        return
    for fault in faults:
        say(context.out, str(fault))
    for title, rows in fits.items():
        if rows:
            context.out.print(titled(title, capacity.COLUMNS, [capacity.row(fit) for fit in rows]))
        else:
            say(context.out, f"{title}: nothing says how large the cache is; pass --gpu")
    bad = len({(fault.file, fault.object) for fault in faults})
    words = [f"{len(good)} valid", f"{bad} faulty" if faults else "none faulty"]
    words += [f"{others} of other kinds left alone"] if others else []
    say(context.out, ", ".join(words))
