"""What a cgroup allows, as its files say: both versions, own group and those above."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamer.base.cgroup import Cgroup, idle_core_seconds, usable_cores

ALLOWED = len(os.sched_getaffinity(0))


def made(root: Path, membership: str, **files: str) -> Cgroup:
    """A tree of cgroups; `__` in a name is a folder, `_dot_` a dot."""
    (root / "membership").write_text(membership)
    for name, text in files.items():
        path = root / "fs" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Cgroup(root / "fs", root / "membership")


def test_a_container_sees_its_group_as_the_root(tmp_path):
    """Docker and Kubernetes with namespaces, version 2."""
    found = made(tmp_path, "0::/\n", cpu_dot_max="150000 100000", memory_dot_max="536870912")
    assert (found.cpus(), found.memory_bytes(), usable_cores(found)) == (1.5, 512 << 20, min(2, ALLOWED))


def test_a_service_reads_its_own_group_and_those_above(tmp_path):
    """systemd: MemoryMax on the unit, CPUQuota on its slice; the least counts."""
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
    """SLURM and older Docker; -1 is no quota."""
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
    """Limit minus use, the page cache counted as free; the group above has less left than the own one."""
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
    """Its use counts the groups below, so their page cache counts as well."""
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
    """ "max", no file, or a group that this namespace cannot see: all allowed CPUs."""
    found = made(tmp_path, membership, cpu_dot_max="max 100000", memory_dot_max="max")
    assert (found.memory_bytes(), found.memory_left_bytes(), found.cpus()) == (None, None, None)
    assert usable_cores(found) == ALLOWED
    assert Cgroup(tmp_path / "nowhere", tmp_path / "neither").memory_bytes() is None


def test_idle_time_is_that_of_the_allowed_cpus(tmp_path, monkeypatch):
    """idle and iowait of each, in ticks of 10 ms; a quota counts instead where there is one; else it is unknown."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})
    stat = tmp_path / "stat"
    stat.write_text("cpu 9 9 9 999 99 0 0\ncpu0 1 1 1 100 20 0 0\ncpu1 1 1 1 500 0 0 0\ncpu2 1 1 1 200 0 0 0\nintr 7\n")
    free = made(tmp_path, "0::/\n", memory_dot_max="max")
    assert idle_core_seconds(5.0, free, stat) == pytest.approx(320 / os.sysconf("SC_CLK_TCK"))
    assert idle_core_seconds(5.0, free, tmp_path / "none") is None
    limited = made(tmp_path, "0::/\n", cpu_dot_max="150000 100000", cpu_dot_stat="usage_usec 3000000\nuser_usec 1")
    assert idle_core_seconds(10.0, limited, stat) == pytest.approx(12.0)


def test_idle_time_of_this_machine_grows():
    """Not by more than its cores allow."""
    before, after = idle_core_seconds(0.0), idle_core_seconds(0.0)
    assert before is not None
    assert 0 <= after - before < 60 * ALLOWED
