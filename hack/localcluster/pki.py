"""Keys and certificates of one cluster, and the kubeconfig of each of its parts."""

import base64
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from localcluster.layout import Layout, Network
from localcluster.shell import run

VALID_DAYS = "365"


@dataclass(frozen=True)
class Certificate:
    """One certificate: its file name, who it names, and the names it may serve."""

    name: str
    common_name: str
    organization: str | None = None
    alternative_names: tuple[str, ...] = ()
    kubeconfig: bool = False

    @property
    def subject(self) -> str:
        """Subject in OpenSSL's notation."""
        group = f"/O={self.organization}" if self.organization else ""
        return f"{group}/CN={self.common_name}"


def certificates(network: Network, node_name: str) -> tuple[Certificate, ...]:
    """Every certificate of a cluster; each component has its own identity, so RBAC is real."""
    return (
        Certificate(
            "apiserver",
            "kube-apiserver",
            alternative_names=(
                "IP:127.0.0.1",
                f"IP:{network.node_address}",
                f"IP:{network.api_service_address}",
                "DNS:localhost",
                "DNS:kubernetes",
                "DNS:kubernetes.default",
                "DNS:kubernetes.default.svc",
                "DNS:kubernetes.default.svc.cluster.local",
            ),
        ),
        Certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Certificate("admin", "kubernetes-admin", "system:masters", kubeconfig=True),
        Certificate("kube-controller-manager", "system:kube-controller-manager", kubeconfig=True),
        Certificate("kube-scheduler", "system:kube-scheduler", kubeconfig=True),
        Certificate("kube-proxy", "system:kube-proxy", kubeconfig=True),
        Certificate(
            "kubelet",
            f"system:node:{node_name}",
            "system:nodes",
            (f"IP:{network.node_address}", f"DNS:{node_name}"),
            kubeconfig=True,
        ),
    )


def create_pki(layout: Layout) -> None:
    """Make the certificate authority, every certificate and every kubeconfig."""
    folder = layout.pki
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    _key(folder / "ca.key")
    _openssl(
        f"req -x509 -new -key {folder}/ca.key -subj /CN=kvserving-localcluster"
        f" -days {VALID_DAYS} -out {folder}/ca.crt"
    )
    _key(folder / "service-account.key")
    _openssl(f"pkey -in {folder}/service-account.key -pubout -out {folder}/service-account.pub")
    layout.kubeconfigs.mkdir(mode=0o700, exist_ok=True)
    for certificate in certificates(layout.network, layout.node_name):
        _issue(folder, certificate)
        if certificate.kubeconfig:
            text = _kubeconfig(layout, certificate.name)
            _write_private(layout.kubeconfigs / certificate.name, text)
    _write_private(layout.kubeconfig, _kubeconfig(layout, "admin"))


def _openssl(command: str, stdin: str | None = None) -> str:
    """Output of an openssl command; nothing in it holds a space."""
    return run(["openssl", *command.split()], stdin=stdin.encode() if stdin else None)


def _key(path: Path) -> None:
    _openssl(f"genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {path}")


def _issue(folder: Path, certificate: Certificate) -> None:
    base = folder / certificate.name
    _key(Path(f"{base}.key"))
    extensions = "keyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
    if certificate.alternative_names:
        extensions += f"subjectAltName={','.join(certificate.alternative_names)}\n"
    Path(f"{base}.ext").write_text(extensions)
    request = _openssl(f"req -new -key {base}.key -subj {certificate.subject}")
    serial = _openssl("rand -hex 15").strip()
    _openssl(
        f"x509 -req -CA {folder}/ca.crt -CAkey {folder}/ca.key -set_serial 0x{serial}"
        f" -days {VALID_DAYS} -extfile {base}.ext -out {base}.crt",
        stdin=request,
    )


def _kubeconfig(layout: Layout, name: str) -> str:
    """Kubeconfig with everything inline, as JSON, which is YAML too."""

    def inline(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    cluster = {
        "server": f"https://{layout.network.node_address}:6443",
        "certificate-authority-data": inline(layout.pki / "ca.crt"),
    }
    user = {
        "client-certificate-data": inline(layout.pki / f"{name}.crt"),
        "client-key-data": inline(layout.pki / f"{name}.key"),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": name}}],
        "current-context": "local",
    }
    return json.dumps(document, indent=1)


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
