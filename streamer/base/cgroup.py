"""Reads the limits of this process: the CPU time and the memory of its cgroup, and the CPUs it may run on.

Used where numbers follow the machine, such as by the pools of processes, the budget of memory for fetches, the ring of
batches, the loader's options, the stall report, and the command `measure`.

Reads both versions of cgroups. A limit may be set on the process's own group (systemd, SLURM, Kubernetes) or on any
above it, and a container sees its own group as the root. So all of them are read, and the lowest limit counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec


class Cgroup(msgspec.Struct, frozen=True):
    """Reads the limits of the cgroups of this process; each call reads the files anew.

    Attributes:
        root: folder where cgroups are mounted.
        membership: file that names the groups of this process (cgroups(7)).
    """

    root: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")

    def memory_bytes(self) -> int | None:
        """Returns the lowest limit of memory in bytes; None if no group has one."""
        texts = [*self._texts("", "memory.max"), *self._texts("memory", "memory.limit_in_bytes")]
        return min((int(text) for text in texts if text.isdecimal()), default=None)

    def memory_left_bytes(self) -> int | None:
        """Returns the bytes that the processes of a group can still take below its limit; None if no group has one.

        Among several groups with a limit, that with the least bytes left counts. The page cache counts as free, because
        the kernel drops it before it kills a process.
        """
        newer = (_count_free_bytes(folder, "memory.max", "memory.current") for folder in self._folders(""))
        older = (
            _count_free_bytes(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")
            for folder in self._folders("memory")
        )
        return min((left for left in chain(newer, older) if left is not None), default=None)

    def cpus(self) -> float | None:
        """Returns the lowest quota, in CPU seconds per second; None if no group has one."""
        newer = (text.split() for text in self._texts("", "cpu.max"))
        older = zip(self._texts("cpu", "cpu.cfs_quota_us"), self._texts("cpu", "cpu.cfs_period_us"), strict=False)
        quotas = ((quota, period) for quota, period in chain(newer, older) if quota.isdecimal())
        return min((int(quota) / int(period) for quota, period in quotas), default=None)

    def unused_cpu_seconds(self, now: float) -> float | None:
        """Returns the CPU seconds of the lowest quota that the group has not taken until `now`.

        Only the difference between two calls has a meaning. Returns None if no group has a quota, or they are groups
        of version 1.

        Args:
            now: seconds of a monotonic clock.
        """
        # CPU seconds per second of each group with a quota, and those that it has not taken.
        found: list[tuple[float, float]] = []
        for folder in self._folders(""):
            try:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
                taken = int((folder / "cpu.stat").read_text().split()[1])
            except (OSError, ValueError):  # no such files here, or "max": no limit
                continue
            found.append((quota / period, quota / period * now - taken / 1e6))
        return min(found, default=(0.0, None))[1]

    def _texts(self, controller: str, name: str) -> Iterator[str]:
        """Yields the text of a file from each group that has this file.

        Args:
            controller: controller of version 1, such as "memory"; "" means version 2, which has one tree for all.
            name: name of the file.
        """
        for folder in self._folders(controller):
            try:
                yield (folder / name).read_text().strip()
            except OSError:
                continue

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yields the folders of the groups of this process: the root, its own group, and those in between."""
        mount = self.root / controller
        yield mount
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:  # no /proc
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            # The path of a group outside of this namespace's view begins with "/..".
            if controller in controllers.split(",") and ".." not in path:
                own = mount / path.strip("/")
                yield from (folder for folder in (own, *own.parents) if mount in folder.parents)


def _count_free_bytes(folder: Path, limit: str, used: str) -> int | None:
    """Returns the bytes left below the limit of one group; None if it has no limit.

    Args:
        folder: folder of the group.
        limit: name of the file with the limit.
        used: name of the file with the bytes in use.
    """
    try:
        limit_bytes = int((folder / limit).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        # Version 1 counts the groups below under "total_"; version 2 always does.
        cached = sum(int(stat.get(f"total_{name}", stat[name])) for name in ("inactive_file", "active_file"))
        return max(0, limit_bytes - int((folder / used).read_text()) + cached)
    except (OSError, ValueError, KeyError):  # no such files here, or "max": no limit
        return None


def usable_memory_bytes(cgroup: Cgroup | None = None) -> int:
    """Returns the bytes of memory that this process may have: the machine's, or less by the limit of a cgroup."""
    limit = (cgroup or Cgroup()).memory_bytes()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine if limit is None else min(limit, machine)


def _cpu_affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def usable_cores(cgroup: Cgroup | None = None) -> int:
    """Returns how many threads of this process can run at once for long, at least 1.

    This is the number of CPUs that it may run on, or the cgroup's quota, rounded up, if that is less.
    """
    quota = (cgroup or Cgroup()).cpus()
    allowed = len(_cpu_affinity())
    return max(1, min(allowed, math.ceil(quota) if quota is not None else allowed))


def idle_core_seconds(now: float, cgroup: Cgroup | None = None, machine: Path = Path("/proc/stat")) -> float | None:
    """Returns the CPU seconds until `now` that this process could have taken and no process took.

    Only the difference between two calls has a meaning.

    Args:
        now: seconds of a monotonic clock.
        cgroup: groups of this process; None means those in /sys/fs/cgroup.
        machine: file with the times of the CPUs (proc_stat(5)).

    Returns:
        The unused part of the cgroup's quota. Without a quota, the idle time of the CPUs that this process may run on.
        None if neither is known.
    """
    if (left := (cgroup or Cgroup()).unused_cpu_seconds(now)) is not None:
        return left
    try:
        lines = [line.split() for line in machine.read_text().splitlines() if line.startswith("cpu")]
        allowed = {f"cpu{number}" for number in _cpu_affinity()}
        # user, nice, system, idle, iowait, ...: a CPU that waits for a disk counts as idle.
        ticks = sum(int(line[4]) + int(line[5]) for line in lines if line[0] in allowed)
    except (OSError, ValueError, IndexError):  # no /proc: not Linux
        return None
    return ticks / os.sysconf("SC_CLK_TCK")
