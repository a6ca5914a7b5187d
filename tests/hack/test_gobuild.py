"""Keys and plans of the Go builds."""

from pathlib import Path

from localcluster.gobuild import _invocations, module_key, programs
from localcluster.layout import REPOSITORY, Layout
from localcluster.versions import GO_MODULES, GoModule

MODULES = {module.name: module for module in GO_MODULES}


def test_a_key_follows_flags_sums_packages_and_processor(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n")
    module = GoModule("x", (("x", "example.org/x"),))
    keys = [
        module_key(module, tmp_path, "x86_64"),
        module_key(module, tmp_path, "aarch64"),
        module_key(GoModule("x", module.packages, ("-tags", "y")), tmp_path, "x86_64"),
        module_key(GoModule("x", module.packages, cgo=True), tmp_path, "x86_64"),
        module_key(GoModule("x", (("y", "example.org/x"),)), tmp_path, "x86_64"),
    ]
    (tmp_path / "go.sum").write_text("example.org/x v1 h1:\n")
    keys.append(module_key(module, tmp_path, "x86_64"))
    assert len(set(keys)) == len(keys)


def test_one_go_build_makes_all_programs_whose_names_go_would_choose() -> None:
    assert len(_invocations(MODULES["kubernetes"])) == 1
    assert [len(names) for names in _invocations(MODULES["etcd"])] == [1]


def test_every_module_has_its_pinned_sums_and_every_program_one_place() -> None:
    for module in GO_MODULES:
        folder = REPOSITORY / "hack" / "localcluster" / "gomod" / module.name
        assert (folder / "go.sum").stat().st_size > 0
        assert "require" in (folder / "go.mod").read_text()
    found = programs(Layout(cache=Path("/cache")))
    assert len(set(found.values())) == len(found)
    assert {"kubelet", "containerd", "ctr", "runc", "ptp", "coredns", "pause"} <= set(found)


def test_kubernetes_says_its_version() -> None:
    flags = " ".join(MODULES["kubernetes"].flags)
    pinned = (REPOSITORY / "hack/localcluster/gomod/kubernetes/go.mod").read_text()
    version = next(line for line in pinned.splitlines() if "k8s.io/kubernetes v" in line).split()
    assert f"gitVersion={version[version.index('k8s.io/kubernetes') + 1]}" in flags
