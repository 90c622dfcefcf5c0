"""The limits of a cgroup, read from files as the kernel writes them, of versions 1 and 2, own group and those above."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamer.base.cgroup import Cgroup, idle_core_seconds, usable_cores

ALLOWED = len(os.sched_getaffinity(0))


def made(root: Path, membership: str, **files: str) -> Cgroup:
    """Makes the files of a tree of cgroups as the kernel shows them; `__` in a name is a folder, `_dot_` a dot."""
    (root / "membership").write_text(membership)
    for name, text in files.items():
        path = root / "fs" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Cgroup(root / "fs", root / "membership")


def test_a_container_sees_its_group_as_the_root(tmp_path):
    """A container of Docker or Kubernetes with cgroup version 2 sees its own group as the root of the tree."""
    found = made(tmp_path, "0::/\n", cpu_dot_max="150000 100000", memory_dot_max="536870912")
    assert (found.cpus(), found.memory_bytes(), usable_cores(found)) == (1.5, 512 << 20, min(2, ALLOWED))


def test_a_service_reads_its_own_group_and_those_above(tmp_path):
    """The smallest limit counts among the own group and those above, as with systemd's units and slices."""
    found = made(
        tmp_path,
        "0::/system.slice/streamer.service\n",
        system_dot_slice__streamer_dot_service__memory_dot_max="2147483648",
        system_dot_slice__memory_dot_max="4294967296",
        system_dot_slice__cpu_dot_max="50000 100000",
        system_dot_slice__streamer_dot_service__cpu_dot_max="max 100000",
    )
    assert (found.memory_bytes(), found.cpus(), usable_cores(found)) == (2 << 30, 0.5, 1)


def test_the_first_version_has_a_tree_for_each_controller(tmp_path):
    """Version 1 of cgroups has a tree for each controller, as with SLURM and older Docker, and -1 means no quota."""
    found = made(
        tmp_path,
        "4:memory:/slurm/job_7\n1:cpu,cpuacct:/slurm/job_7\n0::/\n",
        memory__slurm__job_7__memory_dot_limit_in_bytes="1073741824",
        cpu__cpu_dot_cfs_quota_us="-1",
        cpu__cpu_dot_cfs_period_us="100000",
        cpu__slurm__job_7__cpu_dot_cfs_quota_us="100000",
        cpu__slurm__job_7__cpu_dot_cfs_period_us="50000",
    )
    assert (found.memory_bytes(), found.cpus()) == (1 << 30, 2.0)


def test_what_is_left_of_the_memory_is_that_of_the_tightest_group(tmp_path):
    """The memory left is limit minus use in the group that has least left, with its page cache counted as free."""
    found = made(
        tmp_path,
        "0::/pod/trainer\n",
        pod__memory_dot_max="1000",
        pod__memory_dot_current="900",
        pod__memory_dot_stat="anon 600\ninactive_file 200\nactive_file 100",
        pod__trainer__memory_dot_max="5000",
        pod__trainer__memory_dot_current="600",
        pod__trainer__memory_dot_stat="anon 600\ninactive_file 0\nactive_file 0",
    )
    assert found.memory_left_bytes() == 400


def test_what_is_left_of_the_memory_in_version_1(tmp_path):
    """In version 1 the use of a group counts the groups below it, so their page cache counts as free as well."""
    found = made(
        tmp_path,
        "4:memory:/job\n",
        memory__job__memory_dot_limit_in_bytes="1000",
        memory__job__memory_dot_usage_in_bytes="1100",
        memory__job__memory_dot_stat="inactive_file 0\nactive_file 0\ntotal_inactive_file 50\ntotal_active_file 70",
    )
    assert found.memory_left_bytes() == 20


@pytest.mark.parametrize("membership", ["", "0::/\n", "0::/../../elsewhere\n"])
def test_no_limit_is_none(tmp_path, membership):
    """A limit of "max", a missing file or a group outside the namespace is no limit, and all allowed CPUs are used."""
    found = made(tmp_path, membership, cpu_dot_max="max 100000", memory_dot_max="max")
    assert (found.memory_bytes(), found.memory_left_bytes(), found.cpus()) == (None, None, None)
    assert usable_cores(found) == ALLOWED
    assert Cgroup(tmp_path / "nowhere", tmp_path / "neither").memory_bytes() is None


def test_idle_time_is_that_of_the_allowed_cpus(tmp_path, monkeypatch):
    """Idle time is idle and iowait of the allowed CPUs, or what a quota has left; without /proc/stat it is None."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})
    stat = tmp_path / "stat"
    stat.write_text("cpu 9 9 9 999 99 0 0\ncpu0 1 1 1 100 20 0 0\ncpu1 1 1 1 500 0 0 0\ncpu2 1 1 1 200 0 0 0\nintr 7\n")
    free = made(tmp_path, "0::/\n", memory_dot_max="max")
    assert idle_core_seconds(5.0, free, stat) == pytest.approx(320 / os.sysconf("SC_CLK_TCK"))
    assert idle_core_seconds(5.0, free, tmp_path / "none") is None
    limited = made(tmp_path, "0::/\n", cpu_dot_max="150000 100000", cpu_dot_stat="usage_usec 3000000\nuser_usec 1")
    assert idle_core_seconds(10.0, limited, stat) == pytest.approx(12.0)


def test_idle_time_of_this_machine_grows():
    """The idle time of this machine does not fall, and rises by no more than its cores allow."""
    before, after = idle_core_seconds(0.0), idle_core_seconds(0.0)
    assert before is not None
    assert 0 <= after - before < 60 * ALLOWED
