"""What both halves of the loader know: chunks that are local or not, for those who make samples or move batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

# A chunk that is still missing or wrong after this many new leases is an error. Counted for each chunk: a program that
# overwrites the cache damages many of one batch.
REREADS = 3


class ChunkUnreadableError(Exception):
    """A chunk is missing or wrong: lease it again, then repeat the batch.

    A `StreamReader` raises it instead of the FileNotFoundError or IntegrityError of the chunk's file, to tell it from
    an error of the same type in a user's transform.

    Args:
        chunk: its number in the manifest.
        reason: for the engine's log.
    """

    def __init__(self, chunk: int, reason: str) -> None:
        super().__init__(chunk, reason)
        self.chunk = chunk
        self.reason = reason

    def __str__(self) -> str:
        return f"chunk {self.chunk}: {self.reason}"


class StepSession(Protocol):
    """Makes the chunks of steps local and leases them. Used by one thread.

    One asks for whole epochs (`rank.step_session`), one for the cohorts of a growing dataset (`rank.growing.session`).
    Steps number the batches since the session began, continuously over epochs.
    """

    @property
    def ready(self) -> int:
        """All chunks of the steps up to and including this one are local.

        Raises:
            StreamerError: the engine's error.
        """
        ...

    def step_of(self, epoch: int, batch: int) -> int:
        """The step of a batch at or after the session's start."""
        ...

    def want(self, step: int) -> None:
        """Requests the chunks of all steps up to and including this one; does not block."""
        ...

    def wait(self, step: int, timeout_seconds: float | None = None) -> None:
        """Blocks until `ready >= step`.

        Raises:
            StreamerError: the engine's error.
            TimeoutError: the time is over.
        """
        ...

    def done(self, step: int, *, flush: bool = True) -> None:
        """Records the steps below this one as consumed; without `flush` they are sent with the next `want`."""
        ...

    def reject(self, chunk: int, reason: str) -> None:
        """Rejects a chunk that is missing or wrong; `ready` falls below its steps until it is leased again."""
        ...

    def rounds(self, step: int) -> tuple[tuple[int, ...], ...]:
        """The rounds of a step that is ready, for `StreamReader.set_rounds`; empty: the dataset does not grow."""
        ...

    def fileno(self) -> int:
        """Readable when `pump` has something to receive; may change in `pump`."""
        ...

    def pump(self, timeout_seconds: float = 0.0) -> None:
        """Receives the engine's messages."""
        ...

    def engine_values(self, timeout_seconds: float) -> Mapping[str, object] | None:
        """The engine's counters, and `consumer`, `job` and `dataset` of this session; any thread.

        None: there is no engine, or no answer in time.
        """
        ...

    def close(self) -> None:
        """Ends the leases; idempotent."""
        ...


# A user's `collate_fn`: list of samples -> batch.
Collate = Callable[[list[object]], object]
