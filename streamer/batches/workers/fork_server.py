"""Starts the fork server of a rank, and requests workers from it. A process has one server, which its loaders share.

The worker pool uses it (`batches/workers/pool.py`), and `loader/dataloader.py` starts it early, so that it imports the
modules meanwhile. After a crash another server is started.

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
from streamer.base.child import (
    Child,
    absolute_import_paths,
    find_interpreter,
    open_standard_descriptors,
    whole_environment,
)
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

# Environment of a server. It imports with one thread: a thread of a BLAS or OpenMP library would not survive the fork,
# but the lock that it holds would (torch then hangs in the child, pytorch #41197). The check of CUDA by NVML does not
# initialise CUDA.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # The import of pyarrow starts a thread that returns memory to the system: without it, workers of every module that
    # imports pyarrow would be new interpreters (2026-11-26).
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
# Time to wait for the server's report that a process has ended. It comes within milliseconds, unless the server is
# stopped or has ended.
_EXIT_SECONDS = 2.0
# Time to wait for the end of a server before it is killed. It ends between two imports: torch takes 5 s on a busy
# machine, and a module of the user may wait for ever.
_CLOSE_SECONDS = 20.0
# A server that has crashed this often within the window of a minute is not started again.
_MAX_CRASHES = 3
_CRASH_WINDOW_SECONDS = 60.0


class ForkedProcess:
    """A worker that the server has forked, or will fork.

    Args:
        pool: the pool of the worker.
        number: number of the process in the pool.

    Attributes:
        pid: pid of the process, or 0 until it is known.
        refused: the reason why it was not forked, or "".
        ended_with_server: whether it ended because the server ended.
        exit_descriptor: always -1. The pool's socket reports the end, so the process needs no descriptor for that.
    """

    # `SpawnedProcess` has one.
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
        """Whether the server has reported the end of the process or refused it, or has ended itself."""
        return self._exit is not None

    def kill(self) -> None:
        """Asks the server to end the process by SIGKILL, unless it has ended. Does not wait."""
        if self._exit is None:
            self._pool.request(Kill(self._number))

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for the end of the process; returns whether it has ended."""
        deadline = time.monotonic() + seconds
        while self._exit is None and (left := deadline - time.monotonic()) > 0:
            self._pool.wait(left)
        return self.ended

    def reap(self) -> tuple[int, int]:
        """Waits at most 2 s for the end of the process after `kill`; returns its exit code and its peak bytes.

        The code is minus the signal that ended the process. Without a report of the server they are -SIGKILL and 0.
        """
        # A process without a pid does not run yet: the server still imports, and ends it when the socket is closed.
        if not self.wait(_EXIT_SECONDS) and self.pid:
            logger.warning("the fork server does not report the end of worker process %d", self.pid)
        return self._exit or (-signal.SIGKILL, 0)

    def update(self, reply: Reply) -> None:
        """Notes what a reply of the server says about this process."""
        if isinstance(reply, Started):
            self.pid = reply.pid
        elif isinstance(reply, Refused):
            self.refused = reply.reason
            self._exit = (0, 0)
        else:
            self._exit = reply.code, reply.peak_bytes

    def record_loss(self) -> None:
        """Notes that the process ended because the server ended."""
        self._exit = (-signal.SIGKILL, 0)
        self.ended_with_server = True


class ForkedPool:
    """Requests the workers of one loader from the server. Used on the feeder's thread only.

    Args:
        end: socket to the server.
        server: the server.

    Attributes:
        gone: whether the server has ended, and with it all workers.
    """

    def __init__(self, end: MessageSocket, server: ForkServer) -> None:
        end.set_blocking(False)
        self._end = end
        self._server = server
        self._count = 0
        self._processes: dict[int, ForkedProcess] = {}
        self._exits: list[ForkedProcess] = []
        self.gone = False

    def fileno(self) -> int:
        """Returns a descriptor that is readable when the server has sent a reply, or has ended."""
        return self._end.fileno()

    def start(self, number: int, workers: int, descriptors: list[int]) -> ForkedProcess:
        """Requests a worker, which is forked as soon as the server has imported all modules. Does not wait.

        Args:
            number: number of the worker, and its row in the status page.
            workers: number of rows in the status page.
            descriptors: descriptors of the status page and of the worker's end of its channel.

        Raises:
            OSError: see `request`.
        """
        self._count += 1
        process = self._processes[self._count] = ForkedProcess(self, self._count)
        self.request(StartWorker(self._count, number, workers), descriptors)
        return process

    def request(self, message: StartWorker | Kill, descriptors: list[int] | None = None) -> None:
        """Sends a request. It is lost if the server has ended, which `pump` notices.

        Raises:
            BlockingIOError: the server has not read the requests before it.
            OSError: the request is longer than the kernel takes.
        """
        send(self._end, message, descriptors)

    def pump(self) -> None:
        """Receives the replies that the server has sent, without waiting, and notices whether it has ended.

        If it has, waits at most 2 s until it is reaped. Raises ConfigError if this process can take no descriptor.
        """
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
                self._exits.append(process)
        if self.gone:
            # The server is reaped first, so that the next call of `fork_server` starts another one.
            self._server.wait_for_end()
            for process in self._processes.values():
                process.record_loss()
            self._exits += self._processes.values()
            self._processes = {}

    def take_exits(self) -> list[ForkedProcess]:
        """Returns the processes that have ended or were refused since the last call."""
        ended, self._exits = self._exits, []
        return ended

    def wait(self, seconds: float) -> None:
        """Waits until the server reports something, at most `seconds`, and receives it; errors as of `pump`."""
        wait_until_readable(self._end.fileno(), seconds)
        self.pump()

    def close(self) -> None:
        """Closes the socket, upon which the server ends the remaining workers."""
        self._end.close()


class ForkServer:
    """One server process, which imports modules before the first fork. Constructing starts it, without waiting.

    Args:
        modules: names of the modules that it imports.

    Attributes:
        pid: pid of the process that constructed it, not of the server.
    """

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
        """Whether the server process has ended, or could not be started."""
        return not self._thread.is_alive()

    def preload(self, modules: Iterable[str]) -> None:
        """Asks the server to import further modules before it forks later workers. Does not wait.

        Raises:
            OSError: the request is longer than the kernel takes, or the server has not read earlier ones.
        """
        if new := [name for name in modules if name not in self._modules]:
            self._modules += new
            send(self._control, Import(new))

    def connect(self) -> ForkedPool:
        """Returns a new pool. Its workers get the present working directory, `sys.path` and environment of the rank.

        Raises:
            ConfigError, OSError: as `memory_file`.
        """
        ours, theirs = MessageSocket.pair()
        context = memory_file("streamer-context", current_context())
        send(self._control, Connect(), [theirs.fileno(), context])
        theirs.close()
        os.close(context)
        return ForkedPool(ours, self)

    def wait_for_end(self) -> None:
        """Waits at most 2 s until the server process has ended and is reaped."""
        self._thread.join(_EXIT_SECONDS)

    def close(self) -> None:
        """Ends the server and waits for its end. Kills it if it still imports after `_CLOSE_SECONDS`."""
        self._control.close()
        self._thread.join(_CLOSE_SECONDS)
        if self._process is not None and not self.gone:
            logger.warning("the fork server, process %d, does not end: it is killed", self._process.pid)
            self._process.kill()
        self._thread.join()

    def _run(self, control: MessageSocket) -> None:
        """Starts the server process and waits for its end: the body of the thread."""
        try:
            process = self._process = self._start(control)
        except (OSError, UnicodeEncodeError) as error:
            # The next start of a worker fails by the same limit, with an error for the user.
            logger.debug("the fork server does not start: %s", error)
        else:
            process.reap()
        finally:
            control.close()

    def _start(self, control: MessageSocket) -> Child:
        """Starts the server process with its end of the control socket, and closes that here."""
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
    """The server of this process, and the monotonic times of its recent crashes in seconds."""

    server: ForkServer | None = None
    crashes: list[float] = msgspec.field(default_factory=list)


_lock = threading.Lock()
_current = _Current()


@name_limits()
def fork_server(modules: Iterable[str] = ()) -> ForkServer | None:
    """Returns the server of this process. Starts one if there is none, and asks it to import the modules.

    None means that servers have crashed `_MAX_CRASHES` times within a minute: workers must start in another way.

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
    """Ends the server of this process and waits for it, if there is one. For tests and notebooks.

    The next loader starts another server.
    """
    with _lock:
        server, _current.server = _current.server, None
    if server is not None and server.pid == os.getpid():
        server.close()
