"""Runs the fork server of a rank: imports the modules that workers need, once, and forks the workers.

`ForkServer` (`batches/workers/fork_server.py`) starts it as `python -P -m streamer.batches.workers.fork_server_main
CONTROL SETTINGS`, where both arguments are file descriptors: of the control socket, and of a memory file with
`Settings`.

Of user code the server runs only the top level of modules. It has one thread, no connection and no CUDA context. It
ends with its rank: at the end of the control socket, or by PR_SET_PDEATHSIG in the middle of an import. Its workers end
with it in the same way.

A module may start threads or open sockets when it is imported: a fork would copy locks that nothing releases, or share
a connection. Then no worker is forked, and the rank starts workers as new interpreters instead.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterable

import msgspec

from streamer.base import linux
from streamer.base.message_socket import MessageSocket
from streamer.batches.workers import worker
from streamer.batches.workers.fork_protocol import (
    CONTROL,
    REQUEST,
    Connect,
    Exited,
    Import,
    Kill,
    ProcessContext,
    Refused,
    Reply,
    Settings,
    Started,
    StartWorker,
    read_memory_file,
    receive,
    send,
)

# Modules that every worker needs. numpy imports its `random` at the first use, which is after the fork: without it here
# each of 8 workers with torch had 9.4 MB of its own, with it 3.1 (2026-11-26).
_ALWAYS = ("numpy.random", "streamer.batches.samples.recipe")


class ForkedGroup:
    """The workers of one loader, in the server.

    Attributes:
        end: the server's end of the pool's socket.
        context: working directory, `sys.path` and environment of the workers.
        pids: pids of the running workers, by the number of their `StartWorker`.
    """

    def __init__(self, end: MessageSocket, context: ProcessContext) -> None:
        self.end = end
        self.context = context
        self.pids: dict[int, int] = {}

    def reply(self, reply: Reply) -> None:
        """Sends a reply to the rank. It is lost if the rank has closed the socket.

        Raises:
            OSError: the reply is longer than the kernel takes, or the rank has not read earlier ones.
        """
        send(self.end, reply)

    def kill(self, numbers: Iterable[int]) -> None:
        """Ends workers by SIGKILL, unless they have been reaped: a pid in `pids` cannot have been reused."""
        for number in numbers:
            if (pid := self.pids.get(number)) is not None:
                os.kill(pid, signal.SIGKILL)


class Imports:
    """Imports modules, and checks whether a fork is still safe.

    Attributes:
        unsafe: the reason why a fork is not safe, or "" while it is.
    """

    def __init__(self) -> None:
        self.unsafe = ""

    def add(self, modules: Iterable[str]) -> None:
        """Imports modules, and sets `unsafe` if one of them starts threads or opens a socket.

        An error is ignored: a worker that imports the module again reports it.
        """
        for name in modules:
            sockets = _sockets()
            try:
                importlib.import_module(name)
            except BaseException:  # noqa: BLE001 - also SystemExit: a script without a guard that ends its process
                if os.environ.get("STREAMER_LOG") == "debug":
                    traceback.print_exc()
            # `unsafe` names the first module after which a fork is not safe.
            if not self.unsafe and (threads := len(os.listdir("/proc/self/task"))) > 1:
                self.unsafe = f"importing {name} starts {threads - 1} thread(s)"
            elif not self.unsafe and _sockets() > sockets:
                self.unsafe = f"importing {name} opens a socket"
        # Pages that the collector does not touch stay shared: 49 instead of 93 MB a worker with torch (2026-11-22).
        gc.collect()
        gc.freeze()

    def probe(self) -> None:
        """Sets `unsafe` if torch says in a forked child that CUDA does not work there.

        That is so if a module has initialised CUDA in this process. It forks a child and waits for its end.
        """
        if self.unsafe or "torch" not in sys.modules:
            return
        child = os.fork()
        if child == 0:
            os._exit(bool(sys.modules["torch"].cuda._is_in_bad_fork()))
        if os.waitpid(child, 0)[1]:
            self.unsafe = "a module initialises CUDA when it is imported"


def _sockets() -> int:
    """Returns the number of sockets among the descriptors of this process."""
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{entry}").startswith("socket:")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


class ForkServerLoop:
    """Serves one rank until its control socket is closed.

    Args:
        control: the server's end of the control socket.
        imports: the modules that have been imported.
    """

    def __init__(self, control: MessageSocket, imports: Imports) -> None:
        self._control = control
        self._imports = imports
        self._pools: dict[int, ForkedGroup] = {}
        # The ends of a pipe, of which the first one is readable when a child has ended.
        self._child_exits, self._wakeup = linux.pipe()
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._child_exits, select.POLLIN)

    def serve(self) -> None:
        """Serves until the rank has closed the control socket. Handles SIGCHLD in this process."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        while True:
            for ready, _ in self._poll.poll():
                if ready == self._child_exits:
                    os.read(self._child_exits, 4096)
                    self._reap()
                elif ready == self._control.fileno():
                    if not self._handle_control():
                        return
                elif ready in self._pools:
                    self._handle_pool(self._pools[ready])

    def _handle_control(self) -> bool:
        """Handles a message of the control socket. Returns False if the rank has ended."""
        if (received := receive(self._control, CONTROL)) is None:
            return False
        message, descriptors = received
        if isinstance(message, Import):
            self._imports.add(message.modules)
            self._imports.probe()
        elif isinstance(message, Connect):
            end, context = descriptors
            pool = ForkedGroup(
                MessageSocket.adopt(end), msgspec.msgpack.decode(read_memory_file(context), type=ProcessContext)
            )
            self._pools[end] = pool
            self._poll.register(end, select.POLLIN)
        return True

    def _handle_pool(self, pool: ForkedGroup) -> None:
        """Handles a message of a pool. Ends the pool and its workers when its socket is closed."""
        if (received := receive(pool.end, REQUEST)) is None:
            self._poll.unregister(pool.end)
            del self._pools[pool.end.fileno()]
            pool.kill(list(pool.pids))
            pool.end.close()
            return
        message, descriptors = received
        if isinstance(message, StartWorker):
            self._start(pool, message, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        elif isinstance(message, Kill):
            pool.kill([message.process])

    def _start(self, pool: ForkedGroup, start: StartWorker, descriptors: list[int]) -> None:
        """Forks a worker, or refuses to; replies to the rank in both cases."""
        if self._imports.unsafe:
            pool.reply(Refused(start.process, self._imports.unsafe))
            return
        worker.flush_output()
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            pool.reply(Refused(start.process, f"a fork failed: {error}"))
            return
        if pid == 0:
            self._become_worker(server, pool.context, start, descriptors)
        pool.pids[start.process] = pid
        pool.reply(Started(start.process, pid))

    def _reap(self) -> None:
        """Reaps all children that have ended, and tells the rank."""
        numbers = {pid: (pool, number) for pool in self._pools.values() for number, pid in pool.pids.items()}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in numbers:
                pool, number = numbers[pid]
                del pool.pids[number]
                pool.reply(Exited(number, os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10))

    def _become_worker(self, server: int, context: ProcessContext, start: StartWorker, descriptors: list[int]) -> None:
        """Runs the worker in the forked process. It never returns: no code of the server may run after it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            worker.end_with_parent(server)
            self._control.close()
            for pool in self._pools.values():
                pool.end.close()
            os.close(self._child_exits)
            os.close(self._wakeup)
            worker.enter_context(context)
            _renew(context)
            worker.serve(start.number, start.workers, *descriptors)
            code = 0
        except BaseException:  # noqa: BLE001 - the rank notices the end of the process
            traceback.print_exc()
        finally:
            worker.leave(code)


def _renew(context: ProcessContext) -> None:
    """Resets a forked process to the state of a new interpreter: collector, random numbers and threads of torch."""
    gc.enable()
    # Python reseeds its own generator after a fork; from the others all forks would draw the same numbers.
    sys.modules["numpy"].random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.random.default_generator.seed()
        # This process has imported with one thread, regardless of the variable.
        torch.set_num_threads(_threads(context.environment.get(b"OMP_NUM_THREADS", b"")))


def _threads(variable: bytes) -> int:
    """Returns the number of threads that OMP_NUM_THREADS asks for, which is 1 if it is not set.

    The variable may be a list, with a number for each depth of nested parallel regions: the first one counts.
    """
    first = variable.partition(b",")[0].strip()
    return max(1, int(first)) if first.isdigit() else 1


def main() -> None:
    """Serves the rank as the fork server of the command line, until the rank closes the control socket."""
    control, settings = map(int, sys.argv[1:])
    config = msgspec.msgpack.decode(read_memory_file(settings), type=Settings)
    worker.end_with_parent(config.parent)
    # A trainer that ignores the ends of its children would make this process do so: it could not wait for its own.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    sys.path[:] = map(os.fsdecode, config.path)
    gc.disable()
    imports = Imports()
    imports.add([*_ALWAYS, *config.modules])
    imports.probe()
    ForkServerLoop(MessageSocket.adopt(control), imports).serve()


if __name__ == "__main__":
    main()
