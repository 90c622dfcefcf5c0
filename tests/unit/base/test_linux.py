"""The substitutes for calls that only Linux has, tried on Linux with those calls removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import select
import socket
import sys
import types
from pathlib import Path

import pytest

from streamer.base import linux
from streamer.errors import ConfigError


@pytest.fixture(params=[True, False], ids=["linux", "elsewhere"])
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Returns whether the calls of Linux are there; where not, they are removed from the modules."""
    if not request.param:
        for module, name in (
            *(
                (os, name)
                for name in ("memfd_create", "eventfd", "posix_fallocate", "posix_fadvise", "pidfd_open", "O_PATH")
            ),
            *((fcntl, "F_ADD_SEALS"), (mmap, "MADV_REMOVE"), (select, "epoll"), (socket, "SO_PEERCRED")),
        ):
            monkeypatch.delattr(module, name)
    return request.param


def test_a_memory_file_has_its_length_and_no_name(here: bool) -> None:
    """A memory file has its length, no name, and can be mapped at once; seals hold where the system has them."""
    descriptor = linux.memory_file("test")
    try:
        linux.allocate(descriptor, 8192)
        linux.seal(descriptor, "SHRINK", "GROW")
        linux.advise(descriptor, "DONTNEED")
        with mmap.mmap(descriptor, 8192) as mapping:
            mapping[:4] = b"some"
            linux.free_pages(mapping, 4096, 4096)
        assert os.pread(descriptor, 5, 0) == b"some\0"
        assert os.fstat(descriptor).st_nlink == 0
        assert not os.get_inheritable(descriptor)
        with pytest.raises(PermissionError) if here else contextlib.nullcontext():
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_a_sandbox_without_memfd_create(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Where memfd_create is refused, a memory file is an unnamed file of /dev/shm without seals."""

    def refuse(_name: str, _flags: int) -> int:
        """Stands for a system call filter that refuses memfd_create."""
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "memfd_create", refuse)
    descriptor = linux.memory_file("test")
    try:
        linux.allocate(descriptor, 8192)
        linux.seal(descriptor, "SHRINK", "GROW", "SEAL")
        with mmap.mmap(descriptor, 8192) as mapping:
            mapping[:4] = b"some"
            linux.free_pages(mapping, 4096, 4096)
        assert (os.pread(descriptor, 4, 0), os.fstat(descriptor).st_nlink) == (b"some", 0)
    finally:
        os.close(descriptor)


def test_calls_that_a_sandbox_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that refuses eventfd gets a pipe; refused epoll and a missing /proc are errors with advice."""

    def refuse(*_: object) -> int:
        """Stands for a system call filter that refuses the call."""
        raise PermissionError

    monkeypatch.setattr(os, "eventfd", refuse)
    wakeup = linux.Wakeup()
    wakeup.signal()
    assert select.select([wakeup], [], [], 1) == ([wakeup], [], [])
    monkeypatch.setattr(select, "epoll", refuse)
    with pytest.raises(ConfigError, match=r"a filter of system calls refuses: .* num_workers=0"):
        linux.epoll()
    linux.require_proc()
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    with pytest.raises(ConfigError, match=r"/proc is not mounted"):
        linux.require_proc()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(("umask", "uid", "is_refused"), [(0o777, 1000, True), (0o077, 1000, False), (0o777, 0, False)])
def test_a_umask_that_takes_its_owner_the_rights(
    monkeypatch: pytest.MonkeyPatch, umask: int, uid: int, is_refused: bool
) -> None:
    """A umask that takes the owner's rights is refused unless the user is root; the engine failed on its own marker."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    before = os.umask(umask)
    try:
        with pytest.raises(ConfigError, match="umask 0777") if is_refused else contextlib.nullcontext():
            linux.require_own_files()
    finally:
        os.umask(before)


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_process_that_green_threads_have_patched(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that gevent or eventlet has patched, the error names the library and how to keep poll and epoll."""
    linux.require_poll()
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    monkeypatch.delattr(select, "epoll")
    with pytest.raises(ConfigError, match=rf"{library} has patched this process; .*\(select=False, thread=False\)"):
        linux.epoll()
    monkeypatch.delattr(select, "poll")
    with pytest.raises(ConfigError, match=rf"select.poll is not there: {library} has patched this process"):
        linux.require_poll()


def test_a_wakeup_is_readable_from_a_signal_on(here: bool) -> None:
    """A wakeup is readable from the first of any number of signals until it is cleared, and neither call blocks."""
    wakeup = linux.Wakeup()
    wakeup.clear()
    assert select.select([wakeup], [], [], 0)[0] == []
    for _ in range(3):
        wakeup.signal()
    assert select.select([wakeup], [], [], 0)[0] == [wakeup]
    wakeup.clear()
    assert select.select([wakeup], [], [], 0)[0] == []


def test_a_full_pipe_wakes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wakeup whose pipe is full, with 64 KiB of signals, stays readable, and a further signal does not block."""
    monkeypatch.delattr(os, "eventfd")
    wakeup = linux.Wakeup()
    for _ in range(10_000):
        wakeup.signal()
    assert select.select([wakeup], [], [], 0)[0] == [wakeup]


def test_a_socket_is_bound_at_a_path(here: bool, tmp_path: Path) -> None:
    """A socket can be bound at a path; on Linux the path may be longer than a socket address."""
    folder = tmp_path / ("long" * 30 if here else "short")
    folder.mkdir()
    with contextlib.ExitStack() as on_exit, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(linux.address_of(folder / "s", on_exit))
        assert (folder / "s").is_socket()


def test_what_has_no_substitute_says_so(here: bool) -> None:
    """A call without a substitute raises a ConfigError or ENOSYS; credentials of the peer are None."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = linux.peer_credentials(ours)
    if here:
        assert found == (os.getpid(), os.getuid(), os.getgid())
        linux.epoll().close()
        os.close(linux.pidfd(os.getpid()))
        return
    assert found is None
    with pytest.raises(ConfigError, match="num_workers=0"):
        linux.epoll()
    with pytest.raises(OSError, match="pidfd_open") as refused:
        linux.pidfd(os.getpid())
    assert refused.value.errno == errno.ENOSYS


@pytest.mark.parametrize("refusal", [None, errno.EINVAL, errno.ENOSYS])
def test_two_folders_exchange_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None) -> None:
    """Two folders exchange their names, also where the kernel or the file system cannot do it in one step."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if refusal is not None:
        monkeypatch.setattr(linux.ctypes, "get_errno", lambda: refusal)
        monkeypatch.setattr(linux, "_libc", types.SimpleNamespace(renameat2=lambda *_: -1))
    linux.exchange(tmp_path / "one", tmp_path / "other")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["other"]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["one"]
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(FileNotFoundError):
        linux.exchange(tmp_path / "one", tmp_path / "missing")
