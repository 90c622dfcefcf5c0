"""Wraps calls that only Linux has, with plain substitutes for other systems; most rooms use these wrappers.

The substitutes suffice for the engine in the trainer's process (`engine="inline"`) and `num_workers=0`, over raw files
and tars. Functions that Python lacks on other systems are looked up at run time, because a sandbox or another libc may
lack them, too. `epoll`, `pidfd` and `send_signal` have no substitute; `map_file` needs none, as any system has mmap(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, Protocol

from streamer.errors import ConfigError

# Flag of mmap that provides all pages at once; on other systems each page appears when it is first used.
MAP_POPULATE: int = getattr(mmap, "MAP_POPULATE", 0)
CLOCK_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

Advice = Literal["WILLNEED", "DONTNEED"]

# <linux/fcntl.h> and <linux/fs.h>
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_UCRED = struct.Struct("=iII")
_MEMORY_FOLDER = "/dev/shm"
_ONE = (1).to_bytes(8, sys.byteorder)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int64),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value
# `map_file` reads shorter files, which takes a third of the time, and less memory than the pages of a mapping.
_MAPPED_BYTES = 16384

# ---------------------------------------------------------------- files


def memory_file(name: str) -> int:
    """Creates a file in memory without a name in any folder, and returns its descriptor.

    On other systems, and in a sandbox that refuses memfd_create(2), it is a file of /dev/shm, or a temporary file, that
    is unlinked.

    Args:
        name: name that `/proc/<pid>/fd` shows.

    Raises:
        ConfigError: no such file can be made.
        OSError: this process may have no more descriptors, or there is no memory.
    """
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        try:
            return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            # A filter of system calls forbids it: gVisor, systemd's SystemCallFilter=, profiles of older containers.
            if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
                raise
    for folder in (_MEMORY_FOLDER, None):
        with suppress(OSError):
            descriptor, path = tempfile.mkstemp(prefix=f"{name}-", dir=folder)
            os.unlink(path)
            return descriptor
    raise ConfigError(
        f"there is no memfd_create, and no file can be made in {_MEMORY_FOLDER} or {tempfile.gettempdir()}: allow the "
        "call (seccomp profile, SystemCallFilter=), or set TMPDIR to a folder that can be written",
        field="memfd_create",
    )


def seal(descriptor: int, *against: Literal["SHRINK", "GROW", "SEAL"]) -> None:
    """Forbids later changes of these kinds to a memory file; does nothing for its substitutes, and on other systems."""
    if hasattr(fcntl, "F_ADD_SEALS"):
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, sum(getattr(fcntl, f"F_SEAL_{change}") for change in against))
        except OSError as error:
            # EPERM: a file of /dev/shm, whose seals are sealed; EINVAL: a file of another file system.
            if error.errno not in (errno.EPERM, errno.EINVAL):
                raise


def allocate(descriptor: int, count: int) -> None:
    """Allocates the blocks, or the memory, of a file of `count` bytes; on other systems only sets its length.

    Raises:
        OSError: there is no space for them, or the file may not be that long.
    """
    if sys.platform == "linux" and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, count)
    else:
        os.ftruncate(descriptor, count)


def advise(descriptor: int, advice: Advice) -> None:
    """Advises the kernel about the pages of a whole file; does nothing on other systems."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, getattr(os, f"POSIX_FADV_{advice}"))


def free_pages(mapping: mmap.mmap, start: int, length: int) -> None:
    """Frees a part of the memory of a memory file, which reads as zeros then; does nothing where that is not possible.

    Args:
        mapping: mapping of the file.
        start: first byte, at the beginning of a page.
        length: number of bytes.
    """
    if sys.platform == "linux" and hasattr(mmap, "MADV_REMOVE"):
        try:
            mapping.madvise(mmap.MADV_REMOVE, start, length)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise


def exchange(one: Path, other: Path) -> None:
    """Exchanges the names of two files or folders of one file system, which both exist at any time.

    On other systems, and on file systems that cannot do it (NFS), `other` does not exist for a moment.

    Raises:
        OSError: one of them does not exist, or cannot be renamed.
    """
    if sys.platform == "linux" and hasattr(_libc, "renameat2"):
        if not _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
            raise OSError(code, os.strerror(code), str(other))
    between = one.with_name(f"{one.name}.exchanged")
    os.rename(other, between)
    os.rename(one, other)
    os.rename(between, one)


def map_file(path: Path) -> memoryview:
    """Returns the content of a file as a read-only view.

    A file of 16 KiB or more is mapped: processes share its memory, and it stays mapped until the last view is gone. A
    shorter one is read. No descriptor stays open, where Python's `mmap.mmap` keeps one for each mapping (up to 3.12): a
    manifest of 10^9 samples has 400 files, and every process of a node maps them.

    Raises:
        OSError: the file cannot be opened or mapped, or is empty.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(descriptor).st_size
        if 0 < length < _MAPPED_BYTES:
            return memoryview(os.read(descriptor, length))
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    owner = (ctypes.c_ubyte * length).from_address(address)
    # Nothing is unmapped at exit: views may still be in use, and the kernel unmaps what is left.
    weakref.finalize(owner, _libc.munmap, address, length).atexit = False
    return memoryview(owner).cast("B").toreadonly()


def require_proc() -> None:
    """Checks that /proc is there, by which sockets are addressed and processes looked at.

    Raises:
        ConfigError: this is Linux, and it is not mounted.
    """
    if sys.platform == "linux" and not os.path.isdir("/proc/self/fd"):
        raise ConfigError("/proc is not mounted here, which streamer needs: mount -t proc proc /proc", field="platform")


def require_poll() -> None:
    """Checks that this process can wait for descriptors.

    Raises:
        ConfigError: a library for green threads has taken `select.poll` away.
    """
    if sys.platform == "linux" and not hasattr(select, "poll"):
        raise ConfigError(f"select.poll is not there: {_patcher()}", field="platform")


def require_own_files() -> None:
    """Checks that this process may use the files that it makes.

    Raises:
        ConfigError: its umask takes their owner's rights away, and its user is not root.
    """
    try:
        status = Path("/proc/self/status").read_text("utf-8", "surrogateescape")
    except OSError:
        return
    found = re.search(r"^Umask:\s*([0-7]+)$", status, re.MULTILINE)
    if found is not None and int(found[1], 8) & 0o700 and os.geteuid() != 0:
        raise ConfigError(
            f"the umask {found[1]} of this process takes the rights to new files from their own owner: set it to 077, "
            "or 022",
            field="umask",
        )


def _patcher() -> str:
    """Returns which library has replaced calls of the system in this process, and what to do about it."""
    name = next((name for name in ("eventlet", "gevent") if name in sys.modules), "")
    if not name:
        return "another library has replaced calls of the system in this process"
    call = "monkey_patch" if name == "eventlet" else "monkey.patch_all"
    return f"{name} has patched this process; patch it with {call}(select=False, thread=False), or train in another one"


def mountinfo() -> str:
    """Returns the mounted file systems (proc_pid_mountinfo(5)); "" on other systems."""
    with suppress(FileNotFoundError):
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    return ""


# ---------------------------------------------------------------- waiting


# The part of `select.epoll` that is used: other systems do not have this type.
class _Epoll(Protocol):
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def register(self, fd: int, eventmask: int, /) -> None: ...
    def modify(self, fd: int, eventmask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout: float | None = ..., maxevents: int = ...) -> list[tuple[int, int]]: ...


Epoll = _Epoll


def epoll() -> Epoll:
    """Creates an empty epoll set: a descriptor that is readable while one in the set is. Its events are those of poll.

    Raises:
        ConfigError: this system has no epoll, or a sandbox refuses it; there is no substitute.
    """
    if sys.platform == "linux" and hasattr(select, "epoll"):
        try:
            return select.epoll()
        except PermissionError as error:
            raise ConfigError(
                "workers need epoll, which a filter of system calls refuses: allow epoll_create1 (seccomp profile, "
                "SystemCallFilter=), or use num_workers=0",
                field="num_workers",
            ) from error
    if sys.platform == "linux":
        raise ConfigError(
            f"workers need select.epoll, which is not there: {_patcher()}, or use num_workers=0", field="num_workers"
        )
    raise ConfigError("workers need epoll, which only Linux has: use num_workers=0", field="num_workers")


def _eventfd() -> tuple[int, int] | None:
    """Returns the descriptor of an eventfd twice, for reading and for writing; None if there is none."""
    if sys.platform == "linux" and hasattr(os, "eventfd"):
        with suppress(OSError):  # a sandbox refuses the call
            descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return descriptor, descriptor
    return None


class Wakeup:
    """Wakes a thread that waits for a descriptor, from any other thread, without a lock and without blocking.

    The descriptor is closed when the object is freed. Making the object raises OSError if this process may have no more
    descriptors.
    """

    def __init__(self) -> None:
        self._reader, self._writer = _eventfd() or pipe()
        for descriptor in {self._reader, self._writer}:
            # No `__del__`: at the interpreter's exit the names of its module may be gone.
            weakref.finalize(self, os.close, descriptor).atexit = False

    def fileno(self) -> int:
        """Returns the descriptor, which is readable from a `signal` until the next `clear`."""
        return self._reader

    def signal(self) -> None:
        """Makes the descriptor readable, which wakes the thread that waits for it."""
        with suppress(BlockingIOError):  # a full pipe wakes it as well
            os.write(self._writer, _ONE)

    def clear(self) -> None:
        """Makes the descriptor unreadable until the next `signal`."""
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)


def pipe() -> tuple[int, int]:
    """Creates a pipe neither end of which blocks; returns the descriptors for reading and for writing."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


# ---------------------------------------------------------------- processes and sockets


def pidfd(pid: int) -> int:
    """Returns a new descriptor that is readable when the process of this id has ended.

    Raises:
        OSError: the system has no such descriptors (Linux before 5.3, a sandbox, another system), or this process may
            have no more descriptors.
        ProcessLookupError: the process does not exist.
    """
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    raise OSError(errno.ENOSYS, "no pidfd_open")


def send_signal(handle: int, number: signal.Signals) -> None:
    """Sends a signal to the process of a handle of `pidfd`.

    Raises:
        ProcessLookupError: it has ended and was waited for.
    """
    signal.pidfd_send_signal(handle, number)  # type: ignore[attr-defined, unused-ignore]  # macOS has no handles


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread that started it ends; does nothing on other systems.

    If the parent has ended already, this process ends at once, with exit code 0.

    Args:
        parent: process id of the parent.
    """
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)


def peer_credentials(connection: socket.socket) -> tuple[int, int, int] | None:
    """Returns process id, user and group at the other end of a unix socket; None if the system lacks the call."""
    if sys.platform == "linux" and hasattr(socket, "SO_PEERCRED"):
        return _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return None


def address_of(path: Path, on_exit: ExitStack) -> str:
    """Returns an address for a unix socket whose path may be too long for one; on other systems the path itself.

    The address names the folder of the socket by a descriptor that this function opens.

    Args:
        path: path of the socket.
        on_exit: stack that closes the descriptor, after which the address is no longer valid.

    Raises:
        OSError: the folder does not exist or cannot be opened.
    """
    if sys.platform == "linux" and hasattr(os, "O_PATH"):
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        on_exit.callback(os.close, folder)
        return address_in(folder, path)
    return str(path)


def address_in(folder: int, path: Path) -> str:
    """Returns the address of a unix socket in an opened folder; on other systems the path of the socket.

    The address stays right if the folder is renamed, or replaced by another one of its name.

    Args:
        folder: descriptor of the folder.
        path: path of the socket.
    """
    return f"/proc/self/fd/{folder}/{path.name}" if sys.platform == "linux" else str(path)
