"""The rank's side of its fork server: one for each process, shared by its loaders, restarted after a crash.

Workers that are forked from a process which has imported their modules start in 10 ms instead of 2 s, and share its
memory: eight workers with torch take 0.4 GB instead of 2.5 (2026-11-22). multiprocessing's own fork server is not
used: it outlives its parent, ignores modules that fail to import, and blocks its caller during imports.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterable

import msgspec

from streamer.base import linux
from streamer.base.child import Child, absolute_import_paths, whole_environment
from streamer.base.interpreter import find_interpreter, open_standard_descriptors
from streamer.base.message_socket import MessageSocket, wait_until_readable
from streamer.base.system_limits import name_limits
from streamer.batches.workers.fork_protocol import (
    REPLY,
    Connect,
    Import,
    Kill,
    Refused,
    Reply,
    Settings,
    Started,
    StartWorker,
    current_context,
    memory_file,
    receive,
    send,
)

logger = logging.getLogger(__name__)

# A server imports with one thread: a thread of a BLAS or OpenMP library would not survive the fork, but the lock that
# it holds would (torch then hangs in the child, pytorch #41197). The check of CUDA by NVML initialises nothing.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # The import of pyarrow starts a thread that returns memory to the system: without it, workers of every module that
    # imports pyarrow would be new interpreters (2026-11-26).
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
# A server reports the end of a process within milliseconds, unless it is stopped or has ended.
_EXIT_SECONDS = 2.0
# It ends between two imports; torch takes 5 s on a busy machine. A module of the user's may wait for ever.
_CLOSE_SECONDS = 20.0
# A server that has crashed this often within a minute is not started again.
_MAX_CRASHES = 3
_CRASH_WINDOW_SECONDS = 60.0


class ForkedProcess:
    """A worker that the server has forked, or will fork.

    Attributes:
        pid: 0 until it is known.
        refused: the reason why it was not forked; "" otherwise.
        ended_with_server: it ended because the server ended.
    """

    # There is no descriptor of its own: the pool's socket reports the end.
    exit_descriptor = -1

    def __init__(self, pool: ForkedPool, number: int) -> None:
        self._pool = pool
        self._number = number
        self._exit: tuple[int, int] | None = None
        self.pid = 0
        self.refused = ""
        self.ended_with_server = False

    def __repr__(self) -> str:
        return f"ForkedProcess(pid={self.pid}, exit={self._exit})"

    @property
    def ended(self) -> bool:
        """Whether the server has reported its end, or has ended itself."""
        return self._exit is not None

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        if self._exit is None:
            self._pool.request(Kill(self._number))

    def wait(self, seconds: float) -> bool:
        """Waits for its end; returns whether it has ended."""
        deadline = time.monotonic() + seconds
        while self._exit is None and (left := deadline - time.monotonic()) > 0:
            self._pool.wait(left)
        return self.ended

    def reap(self) -> tuple[int, int]:
        """Waits for its end after `kill`, 2 s at most; returns exit code (of a signal negative) and peak bytes.

        Without a report of the server these are -SIGKILL and 0.
        """
        # A process without a pid does not run yet: the server still imports, and ends it when the socket is closed.
        if not self.wait(_EXIT_SECONDS) and self.pid:
            logger.warning("the fork server does not report the end of worker process %d", self.pid)
        return self._exit or (-signal.SIGKILL, 0)

    def update(self, reply: Reply) -> None:
        """Applies a reply of the server."""
        if isinstance(reply, Started):
            self.pid = reply.pid
        elif isinstance(reply, Refused):
            self.refused = reply.reason
            self._exit = (0, 0)
        else:
            self._exit = reply.code, reply.peak_bytes

    def record_loss(self) -> None:
        """Records that it ended with the server."""
        self._exit = (-signal.SIGKILL, 0)
        self.ended_with_server = True


class ForkedPool:
    """The workers of one loader, as its feeder requests them. Used on the feeder's thread only.

    Attributes:
        gone: the server and all its workers have ended.
    """

    def __init__(self, end: MessageSocket, server: ForkServer) -> None:
        end.set_blocking(False)
        self._end = end
        self._server = server
        self._count = 0
        self._processes: dict[int, ForkedProcess] = {}
        self._finish: list[ForkedProcess] = []
        self.gone = False

    def fileno(self) -> int:
        """Returns a descriptor that is readable when the server has sent a reply, or has ended."""
        return self._end.fileno()

    def start(self, number: int, workers: int, descriptors: list[int]) -> ForkedProcess:
        """Requests a worker; it is forked as soon as the server has imported all modules."""
        self._count += 1
        process = self._processes[self._count] = ForkedProcess(self, self._count)
        self.request(StartWorker(self._count, number, workers), descriptors)
        return process

    def request(self, message: StartWorker | Kill, descriptors: list[int] | None = None) -> None:
        """Sends a request; the end of the server is noticed by the end of the socket."""
        send(self._end, message, descriptors)

    def pump(self) -> None:
        """Receives the server's replies."""
        while not self.gone:
            try:
                received = receive(self._end, REPLY)
            except BlockingIOError:
                break
            if received is None:
                self.gone = True
                break
            reply, _ = received
            process = self._processes[reply.process]
            process.update(reply)
            if process.ended:
                del self._processes[reply.process]
                self._finish.append(process)
        if self.gone:
            # Reaped before the next request for a server: one whose sockets are closed accepts no requests.
            self._server.wait_for_end()
            for process in self._processes.values():
                process.record_loss()
            self._finish += self._processes.values()
            self._processes = {}

    def take_exits(self) -> list[ForkedProcess]:
        """Returns the processes that have ended or were refused since the last call."""
        ended, self._finish = self._finish, []
        return ended

    def wait(self, seconds: float) -> None:
        """Waits until the server reports something, at most `seconds`, and receives it."""
        wait_until_readable(self._end.fileno(), seconds)
        self.pump()

    def close(self) -> None:
        """Ends the remaining workers."""
        self._end.close()


class ForkServer:
    """One server process, which imports modules before the first fork. Constructing starts it, without waiting."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._modules = list(modules)
        self._control, theirs = MessageSocket.pair()
        self.pid = os.getpid()
        self._process: Child | None = None
        # PR_SET_PDEATHSIG follows the thread that starts a process: this one runs as long as the server.
        self._thread = threading.Thread(target=self._run, args=(theirs,), name="streamer-fork-server", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"ForkServer({len(self._modules)} modules, {'gone' if self.gone else 'runs'})"

    @property
    def gone(self) -> bool:
        """Whether the process has ended."""
        return not self._thread.is_alive()

    def preload(self, modules: Iterable[str]) -> None:
        """Requests further modules, for later workers."""
        if new := [name for name in modules if name not in self._modules]:
            self._modules += new
            send(self._control, Import(new))

    def connect(self) -> ForkedPool:
        """Makes a pool whose workers get the current working directory, `sys.path` and environment of this process."""
        ours, theirs = MessageSocket.pair()
        context = memory_file("streamer-context", current_context())
        send(self._control, Connect(), [theirs.fileno(), context])
        theirs.close()
        os.close(context)
        return ForkedPool(ours, self)

    def wait_for_end(self) -> None:
        """Waits until the ending process is reaped, 2 s at most."""
        self._thread.join(_EXIT_SECONDS)

    def close(self) -> None:
        """Ends the process and waits for it; one that still imports after `_CLOSE_SECONDS` is killed."""
        self._control.close()
        self._thread.join(_CLOSE_SECONDS)
        if self._process is not None and not self.gone:
            logger.warning("the fork server, process %d, does not end: it is killed", self._process.pid)
            self._process.kill()
        self._thread.join()

    def _run(self, control: MessageSocket) -> None:
        try:
            process = self._process = self._start(control)
        except (OSError, UnicodeEncodeError) as error:
            # Who wants a worker meets the same limit, and says so.
            logger.debug("the fork server does not start: %s", error)
        else:
            process.reap()
        finally:
            control.close()

    def _start(self, control: MessageSocket) -> Child:
        settings = memory_file(
            "streamer-fork-server", Settings(self.pid, list(map(os.fsencode, absolute_import_paths())), self._modules)
        )
        try:
            return Child(
                "streamer.batches.workers.fork_server_main",
                [control.fileno(), settings],
                environment=whole_environment(_ENVIRONMENT),
                own_session=False,
                has_output=True,
            )
        finally:
            control.close()
            os.close(settings)


class _Current(msgspec.Struct):
    """The server of this process, and the times of recent crashes."""

    server: ForkServer | None = None
    crashes: list[float] = msgspec.field(default_factory=list)


_lock = threading.Lock()
_current = _Current()


@name_limits()
def fork_server(modules: Iterable[str] = ()) -> ForkServer | None:
    """Returns the server of this process, started if there is none, or None if it has crashed repeatedly.

    Raises:
        ConfigError: no further Python can be started, or a limit of the system is reached.
    """
    find_interpreter()
    linux.require_proc()
    open_standard_descriptors()
    with _lock:
        server = _current.server
        if server is not None and server.pid == os.getpid() and not server.gone:
            server.preload(modules)
            return server
        if server is not None and server.pid == os.getpid():
            server.close()
            now = time.monotonic()
            _current.crashes = [*(at for at in _current.crashes if now - at < _CRASH_WINDOW_SECONDS), now]
            if len(_current.crashes) >= _MAX_CRASHES:
                return None
        _current.server = ForkServer([*(server._modules if server is not None else ()), *modules])
        return _current.server


def stop_fork_server() -> None:
    """Ends the server of this process, if there is one; the next loader starts another. For tests and notebooks."""
    with _lock:
        server, _current.server = _current.server, None
    if server is not None and server.pid == os.getpid():
        server.close()
