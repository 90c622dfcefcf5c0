"""A worker from the side of the feeder: its channel, its process, and the batches that it makes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

import msgspec

from streamer.base.child import Child, whole_environment
from streamer.batches.causes import BatchTimeline
from streamer.batches.ring.ring import Slot
from streamer.batches.workers.fork_protocol import current_context, memory_file
from streamer.batches.workers.fork_server import ForkedProcess
from streamer.batches.workers.protocol import NO_SLOT, Channel, Doing, Forget, Message, Open, Task

# A worker may finish its batch in this time after its channel is closed; then it is killed.
_EXIT_SECONDS = 0.5

Answer = tuple[Message, int]


class SpawnedProcess(Child):
    """A worker that is a new interpreter. Start it on a thread that runs as long as it (PR_SET_PDEATHSIG).

    Args:
        number: number of the worker.
        workers: number of workers.
        descriptors: its status page and its channel.
    """

    refused = ""
    ended_with_server = False

    def __init__(self, number: int, workers: int, descriptors: list[int]) -> None:
        context = memory_file("streamer-context", current_context())
        try:
            super().__init__(
                "streamer.batches.workers",
                [context, *descriptors],
                [os.getpid(), number, workers],
                environment=whole_environment({}),
                own_session=False,
                has_output=True,
            )
        finally:
            os.close(context)


WorkerProcess = ForkedProcess | SpawnedProcess


class Pending(msgspec.Struct, eq=False):
    """A batch that is being made.

    Attributes:
        step: its number in the run; 0 is the first batch delivered.
        epoch, batch: its numbers.
        task: number of the last task for it.
        slot: its slot; None: not known yet, or memory of its own.
        left_out: ordinals that are no longer loaded.
        skipped: ordinal -> cause, of samples that another one of the batch replaces.
        rereads: number of new leases, by chunk.
        crash_counts: ordinal (-1: between samples) -> workers that crashed on it.
        rounds: of a growing dataset, the rounds of the batch.
        abandoned: its run has ended.
        timeline: its states and their times.
    """

    step: int
    epoch: int
    batch: int
    task: int = 0
    slot: Slot | None = None
    left_out: set[int] = msgspec.field(default_factory=set)
    skipped: dict[int, str] = msgspec.field(default_factory=dict)
    rereads: dict[int, int] = msgspec.field(default_factory=dict)
    crash_counts: dict[int, int] = msgspec.field(default_factory=dict)
    rounds: tuple[tuple[int, ...], ...] = ()
    abandoned: bool = False
    timeline: BatchTimeline = msgspec.field(default_factory=BatchTimeline)

    def count_reread(self, chunk: int) -> int:
        """Counts a new lease of this chunk; returns the new count."""
        self.rereads[chunk] = self.rereads.get(chunk, 0) + 1
        return self.rereads[chunk]

    def count_crash(self, ordinal: int) -> int:
        """Counts a crash on this sample; returns the new count."""
        self.crash_counts[ordinal] = self.crash_counts.get(ordinal, 0) + 1
        return self.crash_counts[ordinal]


class ExitReport(msgspec.Struct, frozen=True):
    """The end of a worker.

    Attributes:
        cause: e.g. "killed by SIGKILL", "exit code 3", ...
        timed_out: it was killed because its sample exceeded the loader's timeout.
        signal: the signal that ended it, 0 for none.
        peak_bytes: its largest resident size, 0 if unknown.
        doing: its task and sample.
        was_ready: whether it had opened its source.
    """

    cause: str
    signal: int
    peak_bytes: int
    doing: Doing
    was_ready: bool
    timed_out: bool = False


class WorkerHandle:
    """A worker process, or a worker thread of the trainer. It runs its tasks one after the other.

    Attributes:
        number: its number among the workers, and its row in the status page.
        channel: the rank's end of its socket.
        process: None for a thread of the trainer.
        tasks: tasks that were sent and not yet reported.
        ready: it has opened its source.
        timed_out: it was killed because its sample exceeded the timeout.
        has_reported: it has reported why it ends, so that its end is no crash.
    """

    def __init__(self, number: int, channel: Channel, process: WorkerProcess | None = None) -> None:
        self.number = number
        self.channel = channel
        self.process = process
        self.tasks: deque[Pending] = deque()
        self.ready = False
        self.timed_out = False
        self.has_reported = False
        self._opens = False
        # The slots whose memory it has mapped.
        self._slots: set[int] = set()

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
            yield received
            if received is None:
                return

    def send_task(self, pending: Pending) -> None:
        """Sends the task. The end of the worker is noticed by the end of file on its channel."""
        slot = pending.slot
        descriptor = -1
        if slot is not None and slot.nbytes and slot.number not in self._slots:
            self._slots.add(slot.number)
            descriptor = slot.descriptor
        number = slot.number if slot is not None else NO_SLOT
        left_out = tuple(sorted(pending.left_out))
        task = Task(pending.task, pending.epoch, pending.batch, slot=number, left_out=left_out, rounds=pending.rounds)
        self.channel.send(task, descriptor)

    def open(self, payload: int) -> None:
        """Sends the source to open, once."""
        if not self._opens:
            self._opens = True
            self.channel.send(Open(), payload)

    def has_slot(self, slot: int) -> None:
        """Records that the worker has made the memory of this slot."""
        self._slots.add(slot)

    def forget_slot(self, slot: int) -> None:
        """Makes the worker unmap the memory of a slot."""
        if slot in self._slots:
            self._slots.remove(slot)
            self.channel.send(Forget(slot))

    def kill(self) -> None:
        """Sends SIGKILL, if it is a process."""
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """Closes its channel, so that it ends after its batch. Kills a process that has not opened its source."""
        self.channel.close()
        if not self.ready:
            self.kill()

    def wait_for_exit(self) -> None:
        """Waits a short time for the process to end by itself."""
        if self.process is not None:
            self.process.wait(_EXIT_SECONDS)

    def reap(self) -> tuple[int, int]:
        """Ends it, if necessary by SIGKILL; returns its exit code and its largest resident size in bytes."""
        self.channel.close()
        if self.process is None:
            return 0, 0
        self.kill()
        return self.process.reap()
