"""Starts and ends the child processes of this package, and says when the next one may start.

Recoders, fetch processes, the peer server, the processes of tasks, workers and their fork server are new interpreters
that run a module. The modules that start them decide about messages, limits and credentials. `client/launcher.py`
starts engines, which are no children, and `streamer doctor` looks for the Python with it.

No thread of this process may fork while a child starts. A fork, as torch's DataLoader makes for its workers, copies
every open descriptor. The forked process would keep ends of pipes open that should close: `subprocess.Popen` waits for
one of them to close, and the new program for another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress

from streamer.base import linux
from streamer.base.message_socket import MessageSocket, wait_until_readable
from streamer.errors import ConfigError

_starting = threading.RLock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)

# Names of variables that are passed on; those of credentials are not among them.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONHOME", "VIRTUAL_ENV")


@contextmanager
def prevent_forks() -> Iterator[None]:
    """Blocks forks by other threads of this process inside a `with`; `subprocess` still starts programs."""
    with _starting:
        yield


# ---------------------------------------------------------------- interpreter and environment


def find_interpreter() -> str:
    """Returns the path of the Python that runs this package in other processes.

    Raises:
        ConfigError: this program is frozen, or it embeds Python and no Python of its version is found.
    """
    if getattr(sys, "frozen", False):
        raise _no_interpreter(f"this program is frozen: {sys.executable} runs the program again and no module")
    if sys.executable:
        return sys.executable
    # A program that embeds Python may leave sys.executable empty, or None.
    version = "python{}.{}".format(*sys.version_info)
    for folder in (
        sysconfig.get_path("scripts"),
        os.path.join(sys.exec_prefix, "bin"),
        sysconfig.get_config_var("BINDIR"),
    ):
        if folder and os.access(candidate := os.path.join(folder, version), os.X_OK):
            return candidate
    raise _no_interpreter(f"sys.executable is {sys.executable!r}, and there is no {version} in {sys.exec_prefix}/bin")


def _no_interpreter(reason: str) -> ConfigError:
    return ConfigError(
        f'no further Python can be started: {reason}; StreamingDataset(engine="inline") with num_workers=0 needs '
        "none, or set sys.executable to a Python that has streamer",
        field="sys.executable",
    )


@contextmanager
def skip_debugger() -> Iterator[None]:
    """Keeps the debugger pydevd (debugpy, PyCharm) out of the interpreters that are started inside a `with`.

    pydevd changes the command of each Python that the debugged process starts. The engine lives on without the
    trainer: under a debugger it waited for a debug session that never came.
    """
    pydevd = sys.modules.get("_pydev_bundle.pydev_monkey")
    skip = getattr(pydevd, "skip_subprocess_arg_patch", nullcontext)
    with skip():
        yield


def open_standard_descriptors() -> None:
    """Opens /dev/null in place of each of the descriptors 0, 1 and 2 that is closed.

    Otherwise the next socket or memory file of this process would get that number, and what a library prints would be
    written to it.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return
        # Programs that this one starts inherit it, as they inherit standard descriptors from a shell.
        os.set_inheritable(descriptor, True)


def import_paths() -> list[str]:
    """Returns `sys.path` as texts; paths and bytes there become texts, and other entries are left out."""
    found: list[object] = [*sys.path]
    return [os.fsdecode(entry) for entry in found if isinstance(entry, str | bytes | os.PathLike)]


def absolute_import_paths() -> list[str]:
    """Returns `sys.path` with absolute paths, for a process in another folder; unchanged if the folder was removed."""
    with suppress(OSError):
        return [os.path.abspath(entry) for entry in import_paths()]
    return import_paths()


def make_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a child that imports from where this process imports, without credentials.

    Args:
        settings: additional variables.
    """
    found = {name: value for name, value in os.environ.items() if name in _VARIABLES}
    return {**found, **settings, "PYTHONPATH": os.pathsep.join(dict.fromkeys(absolute_import_paths()))}


def whole_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a child that runs the user's code: all variables of this process, and PYTHONPATH.

    Args:
        settings: additional variables.
    """
    return {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(absolute_import_paths())}


# ---------------------------------------------------------------- one child


class Child:
    """A new interpreter that runs a module, from its start until it is reaped. Making the object starts it.

    If its program calls `linux.end_with_parent`, it is killed when the thread that made this object ends.

    Args:
        module: module that is run as `python -m`.
        descriptors: descriptors that the child inherits; their numbers are its first arguments.
        numbers: its further arguments.
        environment: all of its variables.
        folder: its working directory. None means that of this process.
        own_session: whether the child gets a session of its own, so that Ctrl-C does not reach it. Otherwise it is
            started with SIGINT blocked, so that Ctrl-C does not end it before its program can ignore it.
        has_output: whether it writes to the standard output of this process.

    Attributes:
        pid: process id of the child.

    Raises:
        ConfigError: there is no Python that can be started.
        OSError: the system cannot start a further process, or `folder` does not exist.
    """

    def __init__(
        self,
        module: str,
        descriptors: Sequence[int],
        numbers: Sequence[int] = (),
        *,
        environment: Mapping[str, str],
        folder: str | None = None,
        own_session: bool = True,
        has_output: bool = False,
    ) -> None:
        # -P: a file random.py in the working directory must not shadow the standard library.
        command = [find_interpreter(), "-P", "-m", module, *map(str, [*descriptors, *numbers])]
        with prevent_forks(), _block_interrupts(not own_session):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=None if has_output else subprocess.DEVNULL,
                pass_fds=descriptors,
                cwd=folder,
                start_new_session=own_session,
                env=environment,
            )
        self.pid = self._process.pid
        self._exit_descriptor: int | None = None
        # Held while the descriptor is used, so that no other thread closes it meanwhile: its number may be reused.
        self._descriptor_lock = threading.Lock()
        self._peak_bytes = 0

    def __repr__(self) -> str:
        return f"Child(pid={self.pid}, code={self._process.returncode})"

    @property
    def exit_descriptor(self) -> int:
        """Descriptor that becomes readable when the child ends, even while a child of its own keeps its sockets open.

        It is opened at the first use and closed by `reap`. It is -1 afterwards, and where the system has none.
        """
        with self._descriptor_lock:
            if self._exit_descriptor is None:
                self._exit_descriptor = _open_pidfd(self.pid)
            return self._exit_descriptor

    def kill(self) -> None:
        """Sends SIGKILL to the child, unless it has ended."""
        with self._descriptor_lock:
            if self._exit_descriptor is not None and self._exit_descriptor >= 0:
                # Popen.kill would reap a child that has ended, and its peak bytes would be lost. A child that is not
                # found has been reaped by a handler of SIGCHLD.
                with suppress(ProcessLookupError):
                    linux.send_signal(self._exit_descriptor, signal.SIGKILL)
            elif self._process.returncode is None:
                self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for the end of the child; returns whether it has ended."""
        if self._process.returncode is None and (descriptor := self.exit_descriptor) >= 0:
            return wait_until_readable(descriptor, seconds)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        return self._process.returncode is not None

    def reap(self) -> tuple[int, int]:
        """Waits for the end of the child, without limit; idempotent.

        Returns:
            Its exit code, or minus the signal that killed it, and its peak of memory in bytes. Each is 0 if it is not
            known. The peak is not known of a child that `wait` or `kill` had to reap, where the system has no
            `exit_descriptor`. A handler of SIGCHLD that reaps the child takes both.
        """
        if self._process.returncode is None:
            try:
                # Unlike Popen.wait, this also returns its memory.
                _, status, usage = os.wait4(self.pid, 0)
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._peak_bytes = usage.ru_maxrss << 10
            except ChildProcessError:
                # It was reaped already: by `kill` in another thread, or by a handler of SIGCHLD, which keeps its code.
                self._process.returncode = self._process.returncode or 0
        with self._descriptor_lock:
            descriptor = self._exit_descriptor
            self._exit_descriptor = -1
        if descriptor is not None and descriptor >= 0:
            os.close(descriptor)
        return self._process.returncode, self._peak_bytes

    def end(self, grace_seconds: float = 0.0) -> int:
        """Waits at most `grace_seconds` for the end of the child, then kills and reaps it. Idempotent.

        Returns:
            Its exit code, or minus the signal that killed it.
        """
        if not (grace_seconds and self.wait(grace_seconds)):
            self.kill()
        return self.reap()[0]


class ConnectedChild(Child):
    """A child with a socket to this process, which its program gets as its first descriptor.

    It has a session of its own. The arguments mean the same as those of `Child`, and the same errors are raised.

    Attributes:
        socket: end of this process; its calls do not wait.
    """

    def __init__(
        self,
        module: str,
        descriptors: Sequence[int] = (),
        numbers: Sequence[int] = (),
        *,
        environment: Mapping[str, str],
        folder: str | None = None,
        has_output: bool = False,
    ) -> None:
        self.socket, theirs = MessageSocket.pair()
        self.socket.set_blocking(False)
        try:
            super().__init__(
                module,
                [theirs.fileno(), *descriptors],
                numbers,
                environment=environment,
                folder=folder,
                has_output=has_output,
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()

    def end(self, grace_seconds: float = 0.0) -> int:
        """Ends the child as `Child.end` does, closes the socket afterwards, and returns the exit code."""
        try:
            return super().end(grace_seconds)
        finally:
            self.socket.close()


@contextmanager
def _block_interrupts(needed: bool) -> Iterator[None]:
    """Blocks SIGINT in this thread inside a `with`, if `needed`; a process that is started there inherits that."""
    if not needed:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_pidfd(pid: int) -> int:
    """Returns a descriptor that is readable when the process has ended, or -1 if the kernel has none."""
    try:
        return linux.pidfd(pid)
    except OSError:  # before Linux 5.3, or a sandbox without it
        return -1


# ---------------------------------------------------------------- its end


def describe_exit(code: int, log: str = "") -> str:
    """Returns a text about an exit code, such as "killed by SIGKILL" or "exit code 1, see the engine's log".

    Args:
        code: exit code, or minus the signal, as Popen and `Child` return it.
        log: where the process has written why it ended; "" if nowhere.
    """
    if code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"killed by {names.get(-code, f'signal {-code}')}"
    return f"exit code {code}, see {log}" if log else f"exit code {code}"


class RestartPauses:
    """Says how long to wait before the next child is started: 1, 2, 4, ... at most 60 s after useless ones in a row.

    Attributes:
        useless: number of children in a row that ended without having been of use.
    """

    _MAX_SECONDS = 60.0

    def __init__(self) -> None:
        self.useless = 0

    def count_end(self, *, useful: bool) -> float:
        """Counts the end of a child; returns the pause in seconds, 0 after a useful child."""
        self.useless = 0 if useful else self.useless + 1
        return min(self._MAX_SECONDS, 2.0 ** min(self.useless - 1, 16)) if self.useless else 0.0
