"""The cluster's cgroup tree, on folders that look like the kernel's."""

from pathlib import Path

import pytest

from localcluster.cgroups import DAEMONS, ROOT, CgroupTree
from localcluster.errors import UnsupportedHostError
from localcluster.host import HostFacts


def tree(version: int, **mounts: Path) -> CgroupTree:
    return CgroupTree(HostFacts(True, (1 << 41) - 1, version, mounts, 1000))


def test_version_1_makes_the_tree_in_each_hierarchy_and_fills_cpusets(tmp_path: Path) -> None:
    cpuset, memory = tmp_path / "cpuset", tmp_path / "memory"
    for folder in (cpuset, cpuset / ROOT, memory):
        folder.mkdir()
        (folder / "cgroup.procs").write_text("")
    for name, text in (("cpuset.cpus", "0-1\n"), ("cpuset.mems", "0\n")):
        (cpuset / name).write_text(text)
        (cpuset / ROOT / name).write_text("\n")

    folders = tree(1, cpuset=cpuset, memory=memory).create(f"{DAEMONS}/etcd")

    assert folders == [cpuset / DAEMONS / "etcd", memory / DAEMONS / "etcd"]
    assert all(folder.is_dir() for folder in folders)
    assert (cpuset / ROOT / "cpuset.cpus").read_text() == "0-1\n"
    assert (cpuset / ROOT / "cpuset.mems").read_text() == "0\n"


@pytest.mark.parametrize(("cgroup", "shares", "weight"), [(ROOT, 2048, 200), (DAEMONS, 8192, 800)])
def test_neither_cluster_nor_daemons_are_one_process_among_many(
    tmp_path: Path, cgroup: str, shares: int, weight: int
) -> None:
    files = tmp_path / "cpu" / cgroup / "cpu.shares", tmp_path / "unified" / cgroup / "cpu.weight"
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("")
    (tmp_path / "unified" / ROOT / "cgroup.controllers").write_text("")
    tree(1, cpu=tmp_path / "cpu").create(f"{DAEMONS}/etcd")
    tree(2, unified=unified(tmp_path / "unified", "")).create(f"{DAEMONS}/etcd")
    assert [str(shares), str(weight)] == [file.read_text() for file in files]


def unified(tmp_path: Path, passed: str) -> Path:
    for folder in (tmp_path, tmp_path / ROOT):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids rdma\n")
        (folder / "cgroup.subtree_control").write_text(passed)
    return tmp_path


def test_version_2_passes_controllers_down_to_where_pods_live_but_not_to_daemons(
    tmp_path: Path,
) -> None:
    tree(2, unified=unified(tmp_path, "memory\n")).create(f"{DAEMONS}/etcd")

    for folder in (tmp_path, tmp_path / ROOT):
        assert (folder / "cgroup.subtree_control").read_text() == "+cpuset +cpu +io +pids"
    assert not (tmp_path / DAEMONS / "cgroup.subtree_control").exists()


def test_version_2_inside_a_container_says_how_to_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unified(tmp_path, "")
    write = Path.write_text

    def busy(self: Path, text: str) -> int:
        if self.name == "cgroup.subtree_control":
            raise OSError(16, "Device or resource busy")
        return write(self, text)

    monkeypatch.setattr(Path, "write_text", busy)
    with pytest.raises(UnsupportedHostError, match=r"busy.*mkdir .*/init"):
        tree(2, unified=root).create(ROOT)


def test_members_are_found_below_and_in_every_hierarchy(tmp_path: Path) -> None:
    for place, pids in (("pids/kvserving", ""), ("pids/kvserving/node/etcd", "11\n12\n")):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "cgroup.procs").write_text(pids)
    (tmp_path / "memory/kvserving/kubepods").mkdir(parents=True)
    (tmp_path / "memory/kvserving/kubepods/cgroup.procs").write_text("12\n13\n")

    found = tree(1, pids=tmp_path / "pids", memory=tmp_path / "memory")

    assert found.members(ROOT) == {11, 12, 13}
    assert found.members(DAEMONS) == {11, 12}
    assert found.exists()
