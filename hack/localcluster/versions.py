"""What the cluster is built from, pinned: one entry per Go module and its programs."""

from dataclasses import dataclass

KUBERNETES = "1.37.2"
PAUSE_IMAGE = "docker.io/local/pause:1"
COREDNS_IMAGE = "docker.io/local/coredns:1.15.0"
ENVOY_GATEWAY_IMAGE = "docker.io/local/envoy-gateway:1.9.1"
ENVOY_IMAGE = "docker.io/local/envoy:1.40.0"

# Compiling is most of a cold start. Debugging data, which the linker drops anyway, takes an eighth
# of it, and inlining another eighth; a control plane that idles does not miss it.
_QUICK = ("-gcflags=all=-dwarf=false -l",)
_STATIC = (*_QUICK, "-ldflags", "-s -w")
_KUBERNETES_VERSION = "k8s.io/component-base/version"
_KUBERNETES_FLAGS = (
    *_QUICK,
    "-ldflags",
    f"-s -w -X {_KUBERNETES_VERSION}.gitVersion=v{KUBERNETES}"
    f" -X {_KUBERNETES_VERSION}.gitMajor=1 -X {_KUBERNETES_VERSION}.gitMinor=37",
)


@dataclass(frozen=True)
class GoModule:
    """A folder of `gomod/` and what is built from it; the version itself stands in its go.mod."""

    name: str
    packages: tuple[tuple[str, str], ...]
    """Pairs of program and import path."""
    flags: tuple[str, ...] = _STATIC
    cgo: bool = False


GO_MODULES: tuple[GoModule, ...] = (
    GoModule("etcd", (("etcd", "go.etcd.io/etcd/server/v3"),)),
    GoModule(
        "containerd",
        tuple(
            (program, f"github.com/containerd/containerd/v2/cmd/{program}")
            for program in ("containerd", "containerd-shim-runc-v2", "ctr")
        ),
    ),
    GoModule(
        "runc",
        (("runc", "github.com/opencontainers/runc"),),
        ("-tags", "seccomp", *_STATIC),
        cgo=True,
    ),
    GoModule(
        "cni-plugins",
        tuple(
            (path.rpartition("/")[2], f"github.com/containernetworking/plugins/plugins/{path}")
            for path in ("main/ptp", "main/loopback", "ipam/host-local", "meta/portmap")
        ),
    ),
    GoModule("coredns", (("coredns", "localcluster/coredns"),)),
    GoModule(
        "kubernetes",
        tuple(
            (program, f"k8s.io/kubernetes/cmd/{program}")
            for program in (
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kubelet",
                "kube-proxy",
            )
        ),
        _KUBERNETES_FLAGS,
    ),
)

ENVOY_GATEWAY = GoModule(
    "envoy-gateway", (("envoy-gateway", "github.com/envoyproxy/gateway/cmd/envoy-gateway"),)
)
"""No part of the cluster: built where a test of a gateway asks for it."""
