"""The workers of one rank as the feeder sees them: one handle for each process or thread."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections import deque
from collections.abc import Iterator

import msgspec

from streamer.loader.board import Doing
from streamer.loader.control import Channel, Made, Note, Payload, RingShape, Task
from streamer.loader.ring import Ring
from streamer.loader.window import Pending

# A worker may finish its batch in this time after its channel is closed; then it is killed
# (docs/architecture.md, rule 6).
_EXIT_SECONDS = 0.5

Answer = tuple[Made | Note, int | None]


class ExitReport(msgspec.Struct, frozen=True):
    """How a worker ended.

    Attributes:
        cause: "killed by SIGKILL", "exit code 3", ...
        signal: the signal that ended it, 0 for none.
        peak_bytes: its largest resident size, 0 if unknown.
        doing: what it was doing.
        was_ready: whether it had opened its source.
    """

    cause: str
    signal: int
    peak_bytes: int
    doing: Doing
    was_ready: bool


class WorkerHandle:
    """A worker process, or a worker thread of the trainer; it performs its tasks one after the other.

    Attributes:
        number: its number among the workers, and its row on the board.
        channel: the rank's end of its socket.
        process: None for a thread of the trainer.
        tasks: the tasks that it was sent and has not answered.
        up: it has started and imported what it needs.
        ready: it has opened its source.
        pidfd: readable when the process has ended, also while a child of it keeps the socket open; -1: none.
    """

    def __init__(self, number: int, channel: Channel, process: subprocess.Popen[bytes] | None = None) -> None:
        self.number = number
        self.channel = channel
        self.process = process
        self.tasks: deque[Pending] = deque()
        self.up = False
        self.ready = False
        self.pidfd = _pidfd(process.pid) if process else -1
        self._equipped = False

    def __repr__(self) -> str:
        kind = f"pid {self.process.pid}" if self.process else "thread"
        return f"WorkerHandle({self.number}, {kind}, {len(self.tasks)} tasks)"

    def answers(self) -> Iterator[Answer | None]:
        """The messages received so far; None when the worker's end is closed."""
        while True:
            try:
                received = self.channel.receive()
            except BlockingIOError:
                return
            if received is None:
                yield None
                return
            message, descriptor = received
            if isinstance(message, (Made, Note)):
                yield message, descriptor

    def send_task(self, pending: Pending) -> None:
        """Sends the task. That the worker is gone is noticed by the end of file on its channel."""
        ring = pending.ring.number if pending.ring else 0
        self.channel.send(
            Task(pending.task, pending.epoch, pending.batch, ring, pending.slot, tuple(sorted(pending.left_out)))
        )

    def equip(self, payload: int) -> None:
        """Sends what to open, once."""
        if not self._equipped:
            self._equipped = True
            self.channel.send(Payload(), payload)

    def send_ring(self, ring: Ring) -> None:
        """Sends a new ring."""
        self.channel.send(RingShape(ring.number, ring.shape.slots, ring.shape.slot_bytes), ring.descriptor)

    def kill(self) -> None:
        """Sends SIGKILL to a process."""
        if self.process and self.process.returncode is None:
            self.process.kill()

    def dismiss(self) -> None:
        """Closes its channel, so that it ends after its batch; a process that has opened no source is killed."""
        self.channel.close()
        if not self.ready:
            self.kill()

    def wait_for_exit(self) -> None:
        """Waits a short time for the process to end by itself."""
        if self.pidfd >= 0:
            select.select([self.pidfd], [], [], _EXIT_SECONDS)

    def reap(self) -> tuple[int, int]:
        """Ends it, if need be by SIGKILL; returns its exit code and its largest resident size in bytes."""
        self.channel.close()
        if self.process is None:
            return 0, 0
        self.kill()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        return _wait(self.process)


def cause_of(code: int) -> str:
    """An exit code in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:  # before Linux 5.3, or a sandbox without it: its end of file has to do
        return -1


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Reaps the process, with its memory: what Popen.wait does not tell."""
    if process.returncode is not None:
        return process.returncode, 0
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:  # somebody else's SIGCHLD handler was faster
        process.returncode = 0
        return 0, 0
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss * 1024
