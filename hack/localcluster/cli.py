"""The command line: up, down, status, load."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from localcluster import external, gateway, gobuild, imageexec, images, models
from localcluster.builder import ImageBuilder
from localcluster.cluster import Cluster
from localcluster.debian import FOR_IMAGES, NEEDED, ensure_packages
from localcluster.errors import LocalClusterError, NotReadyError, UnsupportedHostError
from localcluster.host import HostFacts, detect_host
from localcluster.hostsettings import host_settings
from localcluster.layout import Layout, layout_from_environment
from localcluster.lock import machine_lock
from localcluster.progress import Progress

EXEC = "exec"


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit status."""
    # What follows the image's name goes to its program, options included.
    passed_on = arguments[2:] if arguments[:1] == [EXEC] else []
    options = _parser().parse_args(arguments[: len(arguments) - len(passed_on)])
    progress = Progress(quiet=options.command == "status")
    layout = layout_from_environment(os.environ)
    try:
        outside = external.kubeconfig_from_environment(os.environ)
        if outside is not None:
            return external.run_command(
                options.command, outside, as_json=getattr(options, "json", False)
            )
        return _local(options, layout, progress, passed_on)
    except LocalClusterError as error:
        print(f"localcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("localcluster: interrupted; run the same command again to go on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="localcluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser(
        "up", help="build what is missing and start the cluster; does nothing when it runs"
    )
    no_install = "name missing Debian packages instead of installing them"
    up.add_argument("--no-install", action="store_true", help=no_install)
    load = commands.add_parser(
        "load", help="build images and load them; the engine brings the models"
    )
    names = ", ".join(image.name for image in images.IMAGES)
    load.add_argument("images", nargs="*", help=f"{names}, or all (the default)")
    load.add_argument("--no-install", action="store_true", help=no_install)
    commands.add_parser(
        "gateway", help="build and load Envoy Gateway, for tests of routes; not part of `load all`"
    )
    execute = commands.add_parser(
        EXEC, help="become a program of a loaded image: exec IMAGE PROGRAM [ARGUMENTS]"
    )
    execute.add_argument("image", help=f"one of {', '.join(i.name for i in images.IMAGES)}")
    commands.add_parser("down", help="end the cluster and leave nothing but the cache behind")
    status = commands.add_parser(
        "status", help="say how the cluster is; exit status 1 when it does not work"
    )
    status.add_argument("--json", action="store_true", help="machine-readable output")
    return parser


def _local(
    options: argparse.Namespace, layout: Layout, progress: Progress, passed_on: Sequence[str]
) -> int:
    facts = detect_host()
    if options.command == "status":
        return _status(Cluster(layout, facts, progress), layout, as_json=options.json)
    _require_abilities(facts)
    if options.command == EXEC:
        store = Cluster(layout, facts, progress).store
        imageexec.replace_process(layout, store, options.image, passed_on)
    if options.command in {"up", "load"}:
        needed = NEEDED if options.command == "up" else FOR_IMAGES
        ensure_packages(needed, progress, install=not options.no_install)
    cluster = Cluster(layout, facts, progress)
    # A healthy cluster is found so without the lock, which a long image build may hold.
    if options.command == "up" and cluster.ready():
        return _say_up(layout, progress)
    with machine_lock(layout.lock, progress):
        if options.command == "down":
            cluster.down()
            progress.say("the cluster is down")
            return 0
        if options.command == "gateway":
            return _gateway(cluster, layout, progress)
        if options.command == "load":
            return _load(cluster, layout, progress, options.images)
        gobuild.build_programs(layout, progress)
        cluster.up()
    return _say_up(layout, progress)


def _say_up(layout: Layout, progress: Progress) -> int:
    progress.say("the cluster is up")
    print(f"export KUBECONFIG={layout.kubeconfig}")
    return 0


def _load(cluster: Cluster, layout: Layout, progress: Progress, names: Sequence[str]) -> int:
    chosen = images.chosen_images(names)
    if not cluster.store.answers():
        raise NotReadyError("the cluster does not run: start it with `up` first")
    settings = host_settings(os.environ)
    builder = ImageBuilder(cluster.store, layout.image_index, settings, progress)
    changed = images.load(builder, chosen, layout)
    if images.ENGINE in chosen:
        engine = images.recipe_of(images.ENGINE, layout)
        models.make_models(builder, engine, layout, progress)
    for image in chosen:
        state = "loaded" if image.reference in changed else "already there"
        progress.say(f"image {image.reference}: {state}")
    return 0


def _gateway(cluster: Cluster, layout: Layout, progress: Progress) -> int:
    """Print what an installation of Envoy Gateway needs, as JSON."""
    if not cluster.store.answers():
        raise NotReadyError("the cluster does not run: start it with `up` first")
    builder = ImageBuilder(cluster.store, layout.image_index, host_settings(os.environ), progress)
    print(json.dumps(asdict(gateway.make(builder, layout, progress))))
    return 0


def _require_abilities(facts: HostFacts) -> None:
    if not facts.root:
        raise UnsupportedHostError("a Kubernetes node needs root: run this with sudo")
    if not facts.can_make_namespaces:
        raise UnsupportedHostError(
            "a Kubernetes node needs CAP_SYS_ADMIN: run this outside of an unprivileged container"
        )


def _status(cluster: Cluster, layout: Layout, *, as_json: bool) -> int:
    health = cluster.health()
    present = cluster.images() if health.components.get("containerd") else []
    folders = sorted(name for name, _ in models.present_models(layout))
    if as_json:
        document = {
            **asdict(health),
            "healthy": health.healthy,
            "kubeconfig": str(layout.kubeconfig),
            "images": present,
            "models": folders,
        }
        print(json.dumps(document, indent=2))
        return 0 if health.healthy else 1
    for name, running in health.components.items():
        print(f"{name:26}{'running' if running else 'not running'}")
    for name, ready in (
        ("API", health.api_ready),
        (f"node {layout.node_name}", health.node_ready),
        ("DNS", health.dns_ready),
    ):
        print(f"{name:26}{'ready' if ready else 'not ready'}")
    if health.api_ready:
        print(f"{'KUBECONFIG':26}{layout.kubeconfig}")
    for kind, names in (("image", present), ("model", folders)):
        for name in names:
            print(f"{kind:26}{name}")
    return 0 if health.healthy else 1
