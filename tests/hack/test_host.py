"""What is detected about a machine, and what follows for the node's configuration."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from localcluster.cgroups import CgroupTree
from localcluster.configs import containerd_config, kube_proxy_config, kubelet_config
from localcluster.errors import UnsupportedHostError
from localcluster.host import CAP_SYS_ADMIN, HostFacts, parse_capabilities, parse_cgroup_mounts
from localcluster.layout import Layout

HYBRID = """\
30 25 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:30 / /sys/fs/cgroup/pids ro,relatime - cgroup cgroup ro,pids
34 30 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = """\
30 25 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
"""
FULL = (1 << 41) - 1
LAYOUT = Layout(cache=Path("/cache"))


def facts(version: int, capabilities: int, mounts: Mapping[str, Path] | None = None) -> HostFacts:
    return HostFacts(
        root=True,
        capabilities=capabilities,
        cgroup_version=version,
        cgroup_mounts=mounts or {},
        max_open_files=20000,
    )


def test_a_hybrid_machine_is_version_1_and_read_only_hierarchies_are_left_alone() -> None:
    version, mounts = parse_cgroup_mounts(HYBRID)
    assert version == 1
    assert mounts == {
        "cpu,cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "memory": Path("/sys/fs/cgroup/memory"),
        "unified": Path("/sys/fs/cgroup/unified"),
    }


def test_a_machine_with_version_2_alone_has_one_hierarchy() -> None:
    assert parse_cgroup_mounts(UNIFIED) == (2, {"unified": Path("/sys/fs/cgroup")})


def test_capabilities_are_read_from_the_effective_set() -> None:
    status = "Name:\tpython\nCapInh:\t0000000000000000\nCapEff:\t000001fffeffffff\n"
    found = facts(1, parse_capabilities(status))
    assert found.can_make_namespaces
    assert not found.can_raise_limits
    assert facts(1, FULL).can_raise_limits
    assert not facts(1, FULL & ~(1 << CAP_SYS_ADMIN)).can_make_namespaces


def test_a_limited_version_1_machine_gets_a_modest_node() -> None:
    limited = facts(1, FULL & ~(1 << 24))
    kubelet = json.loads(kubelet_config(LAYOUT, limited))
    assert kubelet["failCgroupV1"] is False
    assert kubelet["oomScoreAdj"] == 0
    assert kubelet["maxOpenFiles"] == 20000
    assert json.loads(kube_proxy_config(LAYOUT, limited))["oomScoreAdj"] == 0
    assert "restrict_oom_score_adj = true" in containerd_config(LAYOUT, limited, Path("/runc"))


def test_a_machine_with_version_2_and_every_capability_gets_the_usual_node() -> None:
    able = facts(2, FULL)
    kubelet = json.loads(kubelet_config(LAYOUT, able))
    assert kubelet["failCgroupV1"] is True
    assert kubelet["oomScoreAdj"] == -999
    assert json.loads(kube_proxy_config(LAYOUT, able))["oomScoreAdj"] == -999
    assert "restrict_oom_score_adj = false" in containerd_config(LAYOUT, able, Path("/runc"))


def test_no_writable_hierarchy_is_said_clearly() -> None:
    with pytest.raises(UnsupportedHostError, match="no writable cgroup hierarchy"):
        CgroupTree(facts(1, FULL)).create("kvserving")
