"""The daemons of the cluster, in the order in which they start: pure command lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.layout import Layout


@dataclass(frozen=True)
class Component:
    """One daemon."""

    name: str
    program: Path
    arguments: tuple[str, ...]

    @property
    def argv(self) -> list[str]:
        """Full command line."""
        return [str(self.program), *self.arguments]


def components(layout: Layout, programs: Mapping[str, Path]) -> tuple[Component, ...]:
    """Every daemon of the cluster."""
    arguments = {
        "etcd": _etcd(layout),
        "containerd": (f"--config={layout.config}/containerd.toml", "--log-level=info"),
        "kube-apiserver": _apiserver(layout),
        "kube-controller-manager": _controller_manager(layout),
        "kube-scheduler": (
            *_own_kubeconfig(layout, "kube-scheduler"),
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        ),
        "kube-proxy": (f"--config={layout.config}/kube-proxy.json",),
        "kubelet": _kubelet(layout),
    }
    return tuple(Component(name, programs[name], given) for name, given in arguments.items())


def _etcd(layout: Layout) -> tuple[str, ...]:
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return (
        f"--data-dir={layout.state}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        # Nothing in this cluster outlives the machine, so waiting for the disk buys nothing.
        "--unsafe-no-fsync",
    )


def _apiserver(layout: Layout) -> tuple[str, ...]:
    pki, network = layout.pki, layout.network
    return (
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=6443",
        "--bind-address=0.0.0.0",
        f"--advertise-address={network.node_address}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-signing-key-file={pki}/service-account.key",
        f"--service-account-key-file={pki}/service-account.pub",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={network.service_range}",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
    )


def _controller_manager(layout: Layout) -> tuple[str, ...]:
    return (
        *_own_kubeconfig(layout, "kube-controller-manager"),
        f"--service-account-private-key-file={layout.pki}/service-account.key",
        f"--root-ca-file={layout.pki}/ca.crt",
        "--use-service-account-credentials",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    )


def _kubelet(layout: Layout) -> tuple[str, ...]:
    return (
        f"--config={layout.config}/kubelet.json",
        f"--kubeconfig={layout.kubeconfigs}/kubelet",
        f"--cert-dir={layout.state}/kubelet-certificates",
        f"--node-ip={layout.network.node_address}",
        f"--hostname-override={layout.node_name}",
    )


def _own_kubeconfig(layout: Layout, name: str) -> tuple[str, ...]:
    path = layout.kubeconfigs / name
    return (
        f"--kubeconfig={path}",
        f"--authentication-kubeconfig={path}",
        f"--authorization-kubeconfig={path}",
    )
