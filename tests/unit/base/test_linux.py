"""What stands in for Linux's own calls does the same for its callers."""

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
    """Whether the calls are there."""
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
    """It can be mapped at once; seals hold where there are some."""
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
    """A file of /dev/shm without a name does instead; it has no seals."""

    def refuse(_name: str, _flags: int) -> int:
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
    """A pipe does instead of an eventfd; nothing does instead of epoll, nor of /proc."""

    def refuse(*_: object) -> int:
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
    """The engine ended over its own marker, with a line about seccomp; root may use its files all the same."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    before = os.umask(umask)
    try:
        with pytest.raises(ConfigError, match="umask 0777") if is_refused else contextlib.nullcontext():
            linux.require_own_files()
    finally:
        os.umask(before)


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_process_that_green_threads_have_patched(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """gevent removes epoll, eventlet poll as well: the error named Linux, or no module."""
    linux.require_poll()
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    monkeypatch.delattr(select, "epoll")
    with pytest.raises(ConfigError, match=rf"{library} has patched this process; .*\(select=False, thread=False\)"):
        linux.epoll()
    monkeypatch.delattr(select, "poll")
    with pytest.raises(ConfigError, match=rf"select.poll is not there: {library} has patched this process"):
        linux.require_poll()


def test_a_wakeup_is_readable_from_a_signal_on(here: bool) -> None:
    """However often it is signalled, and no longer once it is cleared; neither blocks."""
    wakeup = linux.Wakeup()
    wakeup.clear()
    assert select.select([wakeup], [], [], 0)[0] == []
    for _ in range(3):
        wakeup.signal()
    assert select.select([wakeup], [], [], 0)[0] == [wakeup]
    wakeup.clear()
    assert select.select([wakeup], [], [], 0)[0] == []


def test_a_full_pipe_wakes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB of signals that nobody has consumed."""
    monkeypatch.delattr(os, "eventfd")
    wakeup = linux.Wakeup()
    for _ in range(10_000):
        wakeup.signal()
    assert select.select([wakeup], [], [], 0)[0] == [wakeup]


def test_a_socket_is_bound_at_a_path(here: bool, tmp_path: Path) -> None:
    """At a longer one than an address holds, where that can be."""
    folder = tmp_path / ("long" * 30 if here else "short")
    folder.mkdir()
    with contextlib.ExitStack() as on_exit, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(linux.address_of(folder / "s", on_exit))
        assert (folder / "s").is_socket()


def test_what_has_no_substitute_says_so(here: bool) -> None:
    """As an error of the system that callers expect, one that names the argument, or nothing known."""
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
