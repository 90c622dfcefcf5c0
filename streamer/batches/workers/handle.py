"""Controls one worker from the side of the rank: its channel, its process, and the batches that it makes.

`batches/workers/pool.py` makes the handles, and the feeder sends tasks by them (`loader/feed/feeder.py`).
"""

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

# Time that a worker has to finish its batch after its channel is closed. It is killed then.
_EXIT_SECONDS = 0.5

# A message of a worker, and the descriptor that came with it, or -1.
Answer = tuple[Message, int]


class SpawnedProcess(Child):
    """A worker that is a new interpreter. It ends with the thread that constructs it (PR_SET_PDEATHSIG).

    Args:
        number: number of the worker, and its row in the status page.
        workers: number of rows in the status page.
        descriptors: descriptors of the status page and of the worker's end of its channel.

    Attributes:
        refused: always "": one that cannot be started raises the errors of `Child`; see `ForkedProcess`.
        ended_with_server: always False, since it needs no fork server.
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
        step: number of the batch in the run. 0 is the first batch that is delivered.
        epoch: epoch of the batch.
        batch: number of the batch in the epoch.
        task: number of the last task that was sent for it, 0 before the first one.
        slot: slot of the batch, or None if it has none yet or gets memory of its own.
        left_out: codes of samples that are no longer loaded.
        skipped: causes of samples that another one of the batch replaces, by code.
        rereads: number of new leases, by chunk.
        crash_counts: number of workers that crashed on a sample, by its code, or -1 between samples.
        rounds: rounds of the batch of a growing dataset, else ().
        abandoned: whether its run has ended, so that the batch is not delivered.
        timeline: states of the batch and their times.
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
        """Counts a new lease of a chunk for this batch; returns the new count."""
        self.rereads[chunk] = self.rereads.get(chunk, 0) + 1
        return self.rereads[chunk]

    def count_crash(self, ordinal: int) -> int:
        """Counts a crash of a worker on a sample of this batch, by its code; returns the new count."""
        self.crash_counts[ordinal] = self.crash_counts.get(ordinal, 0) + 1
        return self.crash_counts[ordinal]


class ExitReport(msgspec.Struct, frozen=True):
    """How a worker ended.

    Attributes:
        cause: text such as "killed by SIGKILL" or "exit code 3".
        signal: number of the signal that ended it, or 0 if none did.
        peak_bytes: largest resident size of the worker, or 0 if it is not known.
        doing: the last task and sample of the worker. `NOTHING` if it ended with the fork server.
        was_ready: whether it had opened its source.
        timed_out: whether it was killed because a sample exceeded the loader's timeout.
    """

    cause: str
    signal: int
    peak_bytes: int
    doing: Doing
    was_ready: bool
    timed_out: bool = False


class WorkerHandle:
    """The rank's side of a worker process, or of a worker thread of the trainer. It runs its tasks one after the other.

    Attributes:
        number: number of the worker, and its row in the status page.
        channel: the rank's end of the worker's socket.
        process: the process, or None for a thread of the trainer.
        tasks: batches whose tasks were sent and are not yet reported, in the order of sending.
        ready: whether the worker has opened its source.
        timed_out: whether it was killed because a sample exceeded the timeout.
        has_reported: whether it has reported why it ends, so that its end is no crash.
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
        """Yields the messages that have arrived, without waiting, and at last None if the worker's end is closed.

        Raises:
            ConfigError: this process can take no further descriptor.
        """
        while True:
            try:
                received = self.channel.receive()
            except BlockingIOError:
                return
            yield received
            if received is None:
                return

    def send_task(self, pending: Pending) -> None:
        """Sends the task of a batch to the worker, with the memory of its slot if the worker does not have it yet.

        A task is lost if the worker has ended, which `answers` shows.
        """
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
        """Sends recipe and rules to the worker, once. `payload` is the descriptor of the memory that has them."""
        if not self._opens:
            self._opens = True
            self.channel.send(Open(), payload)

    def has_slot(self, slot: int) -> None:
        """Notes that the worker has the memory of a slot, because it has made it."""
        self._slots.add(slot)

    def forget_slot(self, slot: int) -> None:
        """Makes the worker unmap the memory of a slot, if it has it."""
        if slot in self._slots:
            self._slots.remove(slot)
            self.channel.send(Forget(slot))

    def kill(self) -> None:
        """Ends a process by SIGKILL. Does nothing for a thread."""
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """Closes the channel: the worker ends after its batch. A process that has not opened its source is killed."""
        self.channel.close()
        if not self.ready:
            self.kill()

    def wait_for_exit(self) -> None:
        """Waits at most 0.5 s until the process ends by itself. Does not wait for a thread."""
        if self.process is not None:
            self.process.wait(_EXIT_SECONDS)

    def reap(self) -> tuple[int, int]:
        """Ends a process by SIGKILL unless it has ended; returns its exit code and its largest resident size in bytes.

        The code is minus the signal that ended it, and the size is 0 if it is not known. Of a thread, which ends after
        its batch, both are 0.
        """
        self.channel.close()
        if self.process is None:
            return 0, 0
        self.kill()
        return self.process.reap()
