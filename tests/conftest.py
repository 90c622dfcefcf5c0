"""Checks of every test: nothing is left over, and a unit test without the marker `process` starts none.

After each test there is no new task, thread, process, file descriptor, mapping of memory files or blocked signal. What
the fixtures of a module or session opened before the test does not count. The clean case costs about 0.3 ms.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.starts import Guard

# The same examples every time, and no clock in a test: the machine is shared. A few of them in `make test`, which would
# draw the same ones again; `make test-faults` draws more with --hypothesis-profile thorough.
settings.register_profile("steady", deadline=None, derandomize=True, max_examples=6)
settings.register_profile("thorough", settings.get_profile("steady"), max_examples=300)
settings.load_profile("steady")

# How long threads, processes and descriptors that are already on their way out may take (seconds). Waited for only
# when something is still there.
GRACE_SECONDS = 30.0

# How often a test marked `timing` is repeated before it has failed.
TIMING_REPEATS = 2

# Importing albumentations asks PyPI for its newest version otherwise, in each process.
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
# The encoder of AV1 prints twenty lines for each video otherwise.
os.environ["SVT_LOG"] = "1"

_unfinished_tasks: list[str] = []
# The memory files that were mapped last, by the sizes of this process's memory then.
_mapped: dict[str, set[str]] = {}
_starts = Guard()


@pytest.fixture(autouse=True)
def _nothing_left_over(request: pytest.FixtureRequest) -> Iterator[None]:
    _unfinished_tasks.clear()
    before = _snapshot()
    yield
    if request.node.get_closest_marker("leaves_over") is not None:
        return
    left = _left_over(before)
    if left:
        gc.collect()
        left = _left_over(before, wait_seconds=GRACE_SECONDS)
    if left:
        pytest.fail("left over: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_is_there() -> None:
    # What other modules have imported meanwhile: 200,000 objects, which a test that leaves something for a moment has
    # collected twice, 70 s of CPU in all (2026-11-23). Their fixtures have ended.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # The first process of pytest-xdist before the others: in a fresh clone it compiles all tests for them.
    with open(__file__) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What is about a time is failed by a process that is stopped in it. A broken program fails all three times.
    for item in items:
        if item.get_closest_marker("timing") is not None:
            item.add_marker(pytest.mark.flaky(reruns=TIMING_REPEATS))


def pytest_runtest_setup(item: pytest.Item) -> None:
    _starts.running(item)


def pytest_configure() -> None:
    _starts.watch()
    # asyncio.run and pytest-asyncio cancel what a test forgot; here it is counted first.
    runners = asyncio.runners
    cancel: Callable[[asyncio.AbstractEventLoop], None] = runners._cancel_all_tasks  # type: ignore[attr-defined]

    def count_then_cancel(loop: asyncio.AbstractEventLoop) -> None:
        _unfinished_tasks.extend(repr(task) for task in asyncio.all_tasks(loop) if not task.done())
        cancel(loop)

    runners._cancel_all_tasks = count_then_cancel  # type: ignore[attr-defined]


def _fork_server_socket() -> int:
    """Returns the socket's descriptor to the loaders' fork server, which lives as long as this process, or -1."""
    module = sys.modules.get("streamer.batches.workers.fork_server")
    server = module._current.server if module is not None else None
    return -1 if server is None or server.gone else server._control.fileno()


Snapshot = tuple[set[threading.Thread], set[int], dict[int, str], set[str], set[int]]


def _snapshot() -> Snapshot:
    return set(threading.enumerate()), _children(), _descriptors(), _memory_files(), _blocked_signals()


def _blocked_signals() -> set[int]:
    """Returns the signals that this thread blocks; the processes that later tests start inherit them."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def _left_over(before: Snapshot, wait_seconds: float = 0.0) -> list[str]:
    threads, children, descriptors, mappings, blocked = before
    deadline = time.monotonic() + wait_seconds
    left = [f"task {task}" for task in _unfinished_tasks]
    left += [f"thread {t.name}" for t in set(threading.enumerate()) - threads if not _ends(t, deadline)]
    left += [f"process {_command(p)}" for p in _children() - children if not _exits(p, deadline)]
    if wait_seconds:
        # What a thread that has just ended held in a cycle (an exception and its frames) goes with the next one.
        gc.collect()
    opened = _opened(descriptors)
    while opened and time.monotonic() < deadline:  # by a thread of obstore's, which nothing can wait for
        time.sleep(0.01)
        opened = _opened(descriptors)
    left += opened
    left += [f"mapping {name}" for name in _memory_files() - mappings]
    left += [f"blocked signal {number}" for number in _blocked_signals() - blocked]
    return left


def _opened(before: dict[int, str]) -> list[str]:
    """Returns descriptors that were not there before."""
    now = _descriptors()
    now.pop(_fork_server_socket(), None)
    return [f"fd {fd} -> {now[fd]}" for fd in now if before.get(fd) != now[fd] and not _harmless(now[fd])]


def _ends(thread: threading.Thread, deadline: float) -> bool:
    # Python's name for a thread of a library (obstore's) that has called into Python: it cannot be joined.
    if thread.name == "streamer-fork-server" or isinstance(thread, threading._DummyThread):
        return True
    thread.join(max(0.0, deadline - time.monotonic()))
    # The pool that `asyncio.to_thread` of a loop nobody closed leaves behind is not daemonic: it is reported.
    return not thread.is_alive()


def _exits(pid: int, deadline: float) -> bool:
    """Returns whether the process ends and is reaped; a zombie is left over too."""
    # Each lives as long as this process; `multiprocessing.forkserver` is the default start method of 3.14.
    servers = ("resource_tracker", "fork_server_main", "multiprocessing.forkserver")
    if any(name in _command(pid) for name in servers):
        return True
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ended = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]
    finally:
        os.close(handle)
    return bool(ended) and pid not in _children()


def _children() -> set[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as children:
                found.update(map(int, children.read().split()))
        except OSError:  # the thread ended in between
            continue
    return found


def _command(pid: int) -> str:
    try:
        return f"{pid} " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:160]
    except OSError:
        return f"{pid} (gone)"


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of this very listing
            continue
    return found


def _harmless(target: str) -> bool:
    """Returns whether a library opens it once and keeps it: random numbers, terminals, its own code."""
    return target.startswith(("/dev/urandom", "/dev/null", "/dev/pts")) or target.endswith(
        (".so", ".py", ".pyc", ".ttf")
    )


def _memory_files() -> set[str]:
    """Returns mapped memory files; read when sizes have changed: 1.7 ms for 1,300 mappings (2026-11-26)."""
    with open("/proc/self/status") as lines:
        sizes = "".join(line for line in lines if line.startswith(("VmSize", "RssShmem")))
    if sizes not in _mapped:
        _mapped.clear()
        with open("/proc/self/maps") as lines:
            _mapped[sizes] = {
                line.split(None, 5)[5].strip() for line in lines if "/memfd:" in line or "/dev/shm/" in line
            }
    return _mapped[sizes]
