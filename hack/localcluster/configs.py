"""Renders the daemons' configuration: pure functions of the layout and the machine's abilities."""

import json
from collections.abc import Mapping
from pathlib import Path

from localcluster import cgroups
from localcluster.host import HostFacts
from localcluster.layout import Layout
from localcluster.versions import PAUSE_IMAGE

# Inside the node's own network namespace, joined to the host alone.
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104
NO_ADJUSTMENT = 0
KUBELET_OOM_SCORE = -999


def containerd_config(layout: Layout, facts: HostFacts, runc: Path) -> str:
    """Render containerd.toml: image store in the cache, the rest in the node's private /run."""
    return f"""version = 3
root = "{layout.containerd_root}"
state = "/run/containerd"
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  # Every ten seconds, the default, walking the engine's files costs a twelfth of a core.
  stats_collect_period = 60
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {"false" if facts.can_raise_limits else "true"}
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{runc}"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{layout.config}/cni-bin"]
    conf_dir = "{layout.config}/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "{layout.state}/opt"
"""


def cni_config(layout: Layout) -> str:
    """Render a routed pod network: without a bridge no traffic passes beside kube-proxy."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": layout.network.pod_range}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni-addresses",
    }
    plugins = [
        {"type": "ptp", "ipMasq": True, "ipMasqBackend": "nftables", "ipam": ipam},
        {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "kvserving", "plugins": plugins}, indent=1)


def kubelet_config(layout: Layout, facts: HostFacts) -> str:
    """Render the kubelet's configuration as JSON, which it reads as YAML."""
    pki = layout.pki
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ALL_ADDRESSES,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.ROOT}",
        "failCgroupV1": facts.cgroup_version == 2,
        "failSwapOn": False,
        "oomScoreAdj": KUBELET_OOM_SCORE if facts.can_raise_limits else NO_ADJUSTMENT,
        "maxOpenFiles": facts.max_open_files,
        "protectKernelDefaults": True,
        "makeIPTablesUtilChains": False,
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "volumePluginDir": f"{layout.state}/volume-plugins",
        "clusterDomain": "cluster.local",
        "clusterDNS": [layout.network.dns_address],
        "resolvConf": "",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "enableControllerAttachDetach": False,
    }
    return json.dumps(document, indent=1)


def kube_proxy_config(layout: Layout, facts: HostFacts) -> str:
    """Render kube-proxy's configuration; connection tracking limits are the host's."""
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "bindAddress": ALL_ADDRESSES,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": KUBELET_OOM_SCORE if facts.can_raise_limits else NO_ADJUSTMENT,
        "hostnameOverride": layout.node_name,
        "clusterCIDR": layout.network.pod_range,
        "clientConnection": {"kubeconfig": str(layout.kubeconfigs / "kube-proxy")},
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
    return json.dumps(document, indent=1)


def config_files(layout: Layout, facts: HostFacts, programs: Mapping[str, Path]) -> dict[Path, str]:
    """Every configuration file and its text."""
    return {
        layout.config / "containerd.toml": containerd_config(layout, facts, programs["runc"]),
        layout.config / "cni" / "10-kvserving.conflist": cni_config(layout),
        layout.config / "kubelet.json": kubelet_config(layout, facts),
        layout.config / "kube-proxy.json": kube_proxy_config(layout, facts),
    }
