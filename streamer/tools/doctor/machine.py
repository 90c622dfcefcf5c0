"""Checks a machine: Python, torch, memory, limits, the cache folder and an engine.

`streamer doctor` runs these checks (`tools/doctor/__init__.py`).
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.base.cgroup import Cgroup, usable_cores, usable_memory_bytes
from streamer.cache.folder import filesystem_type
from streamer.config import GiB, MiB, format_bytes
from streamer.errors import StreamerError
from streamer.recode.sandbox import describe_gaps
from streamer.tools.doctor import Finding

if TYPE_CHECKING:
    from streamer.client.settings import ClientSettings

# Less of each of these gives a warning. A stock DataLoader passes batches through /dev/shm, which has 64 MB in
# containers by default.
_SHM_BYTES = GiB
# Descriptors for connections, chunk files and the catalog of an engine, and 256 workers.
_DESCRIPTORS = 4096
# Processes and threads: a rank, its workers and the engine have some threads each.
_PROCESSES = 4096
_MEMORY_BYTES = 2 * GiB
_CACHE_BYTES = 20 * GiB
_INODES = 100_000
_IN_MEMORY = ("tmpfs", "ramfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "virtiofs")


def machine_findings(settings: ClientSettings) -> Iterator[Finding]:
    """Yields the findings about this machine.

    It makes the cache folder if it is missing. At last it connects to the engine that the settings name. If they name
    none, that starts one if it does not run yet.
    """
    yield _python()
    yield _torch()
    yield _memory()
    for subject, number, least, flag in (
        ("open files", resource.RLIMIT_NOFILE, _DESCRIPTORS, "-n"),
        ("processes", resource.RLIMIT_NPROC, _PROCESSES, "-u"),
    ):
        soft, hard = (_MAX if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(number))
        fact = f"{_number(soft)} (hard limit {_number(hard)})"
        # The engine raises the soft limit of open files itself.
        if (hard if number == resource.RLIMIT_NOFILE else soft) < least:
            yield Finding("warning", subject, fact, f"raise it: ulimit {flag} {least} (LimitNOFILE=, --ulimit)")
        else:
            yield Finding("ok", subject, fact)
    yield _shm()
    yield _recoders()
    yield from _cache_folder(settings.cache_dir)
    yield _engine(settings)


def _python() -> Finding:
    fact = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {usable_cores()} cores"
    quota = Cgroup().cpus()
    fact += "" if quota is None else f" (the cgroup gives {quota:g} of {os.cpu_count()})"
    if platform.system() == "Linux":
        return Finding("ok", "python", fact)
    return Finding("warning", "python", fact, "streamer is built for Linux and tested nowhere else")


def _torch() -> Finding:
    """Imports torch; a problem if that fails."""
    try:
        import torch
    except ImportError:
        return Finding("problem", "torch", "not installed", "pip install 'streamer-data[torch]'")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        return Finding("ok", "torch", f"{torch.__version__}, no GPU ({built})")
    names = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    return Finding("ok", "torch", f"{torch.__version__}, {torch.cuda.device_count()} x {', '.join(sorted(names))}")


def _memory() -> Finding:
    usable = usable_memory_bytes()
    left = Cgroup().memory_left_bytes()
    is_limited = left is not None and left < usable
    fact = f"{format_bytes(usable)} usable" + (f", {format_bytes(left or 0)} left in the cgroup" if is_limited else "")
    if usable < _MEMORY_BYTES:
        return Finding("warning", "memory", fact, "give the job at least 2 GiB: docs/deploy/sizing.md")
    return Finding("ok", "memory", fact)


_MAX = sys.maxsize


def _number(limit: int) -> str:
    return "unlimited" if limit == _MAX else f"{limit:,}"


def _shm() -> Finding:
    """Looks at the size of /dev/shm."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding("warning", "/dev/shm", f"{error.strerror}", "torch's own DataLoader needs it for its workers")
    size = found.f_frsize * found.f_blocks
    fact = f"{format_bytes(size)}, {format_bytes(found.f_frsize * found.f_bavail)} free"
    if size < _SHM_BYTES:
        advice = "StreamingDataLoader does not use it; for torch's own DataLoader: docker run --shm-size=8g"
        return Finding("warning", "/dev/shm", fact, advice)
    return Finding("ok", "/dev/shm", fact)


def _recoders() -> Finding:
    lacks = describe_gaps()
    if lacks:
        advice = "docs/deploy/security.md says what a recoder is kept from, and by what"
        return Finding("optional", "recoders", f"not kept from {lacks}", advice)
    return Finding("ok", "recoders", "kept from files, network and other processes (Landlock, seccomp)")


def _cache_folder(folder: Path) -> Iterator[Finding]:
    """Makes the cache folder if it is missing, and checks its rights, its file system and its free space."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = os.statvfs(folder)
    except OSError as error:
        advice = "name a folder on a local disk: cache_dir=, --cache-dir or STREAMER_CACHE_DIR"
        yield Finding("problem", "cache", f"{folder}: {error.strerror}", advice)
        return
    kind = filesystem_type(folder) or "unknown"
    free = found.f_frsize * found.f_bavail
    fact = f"{folder}: {kind}, {format_bytes(free)} free of {format_bytes(found.f_frsize * found.f_blocks)}"
    if not os.access(folder, os.W_OK):
        yield Finding("problem", "cache", fact, f"user {os.getuid()} may not write there")
    elif kind in _IN_MEMORY:
        yield Finding("warning", "cache", fact, "this is memory: name a folder on a local disk")
    elif kind.partition(".")[0] in _REMOTE:
        yield Finding(
            "warning", "cache", fact, "this is a remote or emulated file system: name a folder on a local disk"
        )
    elif free < _CACHE_BYTES:
        yield Finding("warning", "cache", fact, "little room: every epoch fetches again what does not fit")
    else:
        yield Finding("ok", "cache", fact)
    if found.f_files and found.f_favail < _INODES:
        yield Finding("warning", "inodes", f"{found.f_favail:,} free", "chunk files need one each; remove other files")


def _engine(settings: ClientSettings) -> Finding:
    """Connects to the engine, which may start one, and checks the limit of its cache."""
    from streamer.client.engine_client import EngineClient

    started = time.monotonic()
    try:
        with EngineClient(settings) as client:
            limit = client.statistics().get("limit_bytes")
    except (StreamerError, OSError) as error:
        return Finding("problem", "engine", str(error), "its log is in the runtime folder (STREAMER_RUNTIME_DIR)")
    seconds = time.monotonic() - started
    where = settings.engine if settings.external else "embedded"
    room = f", its cache takes up to {format_bytes(limit)}" if isinstance(limit, int) else ""
    if isinstance(limit, int) and limit < 64 * MiB:
        return Finding("warning", "engine", f"{where}, answers after {seconds:.1f} s{room}", "free some disk space")
    return Finding("ok", "engine", f"{where}, answers after {seconds:.1f} s{room}")
