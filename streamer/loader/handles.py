"""The workers of one rank as the feeder sees them: a host for each process, a handle for each of its threads."""

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

# A worker that is told to go finishes its batch if it can in this time; then it is killed (law 6: it costs nothing).
_FAREWELL_SECONDS = 0.5

Answer = tuple[Made | Note, int | None]


class Obituary(msgspec.Struct, frozen=True):
    """How a worker ended.

    Attributes:
        cause: "killed by SIGKILL", "exit code 3", ...
        signal: the signal that ended it, 0 for none.
        peak_bytes: its largest resident size, 0 if unknown.
        doing: what each of its threads was doing.
        was_ready: whether it had ever come up.
    """

    cause: str
    signal: int
    peak_bytes: int
    doing: tuple[Doing, ...]
    was_ready: bool


class Handle:
    """One thread of a worker: takes tasks one after the other.

    Attributes:
        row: its number among all threads.
        tasks: what it was given and has not answered.
        ready: it has opened its source.
    """

    def __init__(self, row: int, channel: Channel, host: Host) -> None:
        self.row = row
        self.channel = channel
        self.host = host
        self.tasks: deque[Pending] = deque()
        self.ready = False
        self._equipped = False

    def __repr__(self) -> str:
        return f"Handle({self.row}, {self.host.kind}, {len(self.tasks)} tasks)"

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The process that it is a thread of; None: the trainer's own."""
        return self.host.process

    def answers(self) -> Iterator[Answer | None]:
        """What the worker has said so far; None at the end: it is gone."""
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

    def tell(self, pending: Pending) -> None:
        """Sends the task. A worker that is gone is noticed by its end of file."""
        ring = pending.ring.number if pending.ring else 0
        self.channel.send(
            Task(pending.task, pending.epoch, pending.batch, ring, pending.slot, tuple(sorted(pending.left_out)))
        )

    def equip(self, payload: int) -> None:
        """Sends what to open, once."""
        if not self._equipped:
            self._equipped = True
            self.channel.send(Payload(), payload)

    def give(self, ring: Ring) -> None:
        """Sends a new ring."""
        self.channel.send(RingShape(ring.number, ring.shape.slots, ring.shape.slot_bytes), ring.descriptor)


class Host:
    """One worker process, or one worker thread of the trainer's own.

    Attributes:
        number: its number among the workers.
        handles: its threads.
        up: it has started and imported what it needs.
        alone: it makes a batch over which a worker has died, and nothing beside it.
    """

    def __init__(self, number: int, process: subprocess.Popen[bytes] | None) -> None:
        self.number = number
        self.process = process
        self.handles: list[Handle] = []
        self.up = False
        self.alone = False
        # Readable when the process is gone, also when a child of its own keeps the sockets open.
        self.pidfd = _pidfd(process.pid) if process else -1

    @property
    def kind(self) -> str:
        """For people."""
        return f"pid {self.process.pid}" if self.process else "thread"

    @property
    def idle(self) -> bool:
        """Nobody in it has anything to do."""
        return not any(handle.tasks for handle in self.handles)

    def kill(self) -> None:
        """SIGKILL, for a process."""
        if self.process and self.process.returncode is None:
            self.process.kill()

    def dismiss(self) -> None:
        """Tells it to go; one that has nothing to lose goes at once."""
        for handle in self.handles:
            handle.channel.close()
        if not any(handle.ready for handle in self.handles):
            self.kill()

    def await_end(self) -> None:
        """Gives it the time to go by itself."""
        if self.pidfd >= 0:
            select.select([self.pidfd], [], [], _FAREWELL_SECONDS)

    def bury(self) -> tuple[int, int]:
        """Ends it if need be, waits for its end; returns its exit code and its largest resident size in bytes."""
        for handle in self.handles:
            handle.channel.close()
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
