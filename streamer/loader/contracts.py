"""The interfaces between the two halves of the loader: making samples, and moving batches.

A recipe is sent to a worker process and opens a `BatchSource` there; batches, ring and workers do not depend on
manifests, chunks or decoders. The rank's own process asks a `StepSession` whether the chunks of a batch are local.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamer.loader.batch.placement import Rows

# A chunk that is still missing or wrong after this many new leases is an error. Counted for each chunk: a program that
# overwrites the cache damages many of one batch.
REREADS = 3


class ChunkUnreadableError(Exception):
    """A chunk is missing or wrong: lease it again, then repeat the batch.

    `BatchSource.load` raises it instead of the FileNotFoundError or IntegrityError of the chunk's file, to tell it from
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


class BatchSource:
    """Makes samples, in one worker or in the rank itself. Used by one thread at a time.

    The base of all sources; the defaults are those of a source that reads sample by sample, and measures nothing.
    """

    @property
    def draws(self) -> bool:
        """Whether user code runs for a sample, which may draw from the global generators."""
        return True

    @property
    def user_code(self) -> Sequence[object]:
        """The code that runs for a sample; its own generators are seeded."""
        return ()

    @property
    def takes_rows(self) -> bool:
        """Whether it can write arrays to the rows of the slot."""
        return False

    def batch(self, epoch: int, batch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """This rank's samples of a batch: their ordinals, and which of them are repeats that fill the batch."""
        raise NotImplementedError

    def load(self, epoch: int, ordinal: int) -> object:
        """One decoded and transformed sample.

        Raises:
            ChunkUnreadableError: the bytes are missing or wrong.
        """
        raise NotImplementedError

    def begin(self, epoch: int, ordinals: npt.NDArray[np.int64], rows: Rows | None, at: Callable[[int], None]) -> None:
        """Begins a batch; `load_at` follows for each of its samples.

        Args:
            epoch: of the batch.
            ordinals: int64 (samples,).
            rows: the rows to which arrays may be written; None: no rows, and `load_at` does all reading.
            at: called with the index of a sample before it, and its neighbours, are read.

        Raises:
            ChunkUnreadableError: the bytes of a sample are missing or wrong.
        """

    def load_at(self, epoch: int, ordinal: int, index: int) -> object:
        """One sample for an index of the current batch; not necessarily the ordinal that `begin` got for it.

        Raises:
            ChunkUnreadableError: the bytes are missing or wrong.
        """
        return self.load(epoch, ordinal)

    def first_of_each(self, ordinals: npt.NDArray[np.int64]) -> dict[str, int]:
        """Of a mix: the names of the members of a batch, each with the index of its first sample."""
        return {}

    def set_rounds(self, rounds: Sequence[tuple[int, ...]]) -> None:
        """Of a growing dataset: the rounds of the next batch, each as the fields of `order.growing.Round`."""

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Read, decode, transform: nanoseconds since it was opened."""
        return 0, 0, 0

    def close(self) -> None:
        """Releases its resources."""


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
        """The rounds of a step that is ready, for `BatchSource.set_rounds`; empty: the dataset does not grow."""
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
