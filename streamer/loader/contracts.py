"""The interfaces between the two halves of the loader: making samples, and moving batches.

A `Recipe` is sent to a worker process and opens a `BatchSource` there; the ring and its workers do not depend on
manifests, chunks or decoders. The rank's own process uses `PreparedStream` and `StepSession`: the number of batches in
an epoch, and whether the chunks of a batch are local.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamer.config import RankConfig
from streamer.errors import Detail
from streamer.loader.batch.placement import Rows
from streamer.loader.skipping import SharedBudget, Skipped, SkipRules
from streamer.order.plan import LastBatch

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

    @property
    def is_mixed(self) -> bool:
        """Whether its samples are of several datasets."""
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

    def begin(self, ordinals: npt.NDArray[np.int64], rows: Rows | None, at: Callable[[int], None]) -> None:
        """Begins a batch; `load_at` follows for each of its samples.

        Args:
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


class Recipe(Protocol):
    """Opens a `BatchSource`. Sent to each worker once, by cloudpickle; does not import torch by itself."""

    def open(self) -> BatchSource:
        """Opens the source in the process where it is used."""
        ...


class Plan(Protocol):
    """One epoch of one rank."""

    @property
    def batches(self) -> int:
        """Number of batches."""
        ...


class StepSession(Protocol):
    """Makes the chunks of steps local and leases them. Used by one thread.

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


class PreparedStream(Protocol):
    """A dataset prepared for one batch size."""

    @property
    def rank_config(self) -> RankConfig:
        """Rank and world size."""
        ...

    @property
    def mix(self) -> MixedStream | None:
        """What only a stream of several datasets has; None: this one has one."""
        ...

    @property
    def seed(self) -> int:
        """The seed of the order and of each sample's randomness."""
        ...

    @property
    def skip_rules(self) -> SkipRules:
        """The dataset's rules for samples that cannot be made; the loader's own settings override them."""
        ...

    def sample_key(self, ordinal: int) -> str:
        """A readable name of a sample: its path, or container and byte range."""
        ...

    def sample_label(self, ordinal: int) -> str:
        """The number of a sample for messages; in a mix with the name of its dataset."""
        ...

    def skipped(self, ordinal: int, cause: str) -> Skipped:
        """The record of a sample that was replaced."""
        ...

    def sample_number(self, ordinal: int) -> int:
        """The number that `dataset[i]` takes for a sample."""
        ...

    def shared_budget(self) -> SharedBudget | None:
        """Counts skipped samples over all ranks, one per loader; None: there is one rank."""
        ...

    def facts(self) -> Mapping[str, Detail]:
        """The values that must be equal on all ranks."""
        ...

    def plan(self, epoch: int) -> Plan:
        """The batches of this rank in an epoch, numbered from the start of the epoch also after `resume`."""
        ...

    def recipe(self) -> Recipe:
        """The recipe for workers."""
        ...

    def session(self, epoch: int, start_batch: int) -> StepSession:
        """Opens a session whose step 0 is that batch."""
        ...

    def state(self, epoch: int, batch: int) -> dict[str, object]:
        """The state to save after `batch` batches of `epoch`."""
        ...

    def resume(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Restores a saved state; returns the epoch and the number of its next batch.

        Raises:
            StateError: the state is of another dataset, order or seed, or its position is inside a batch.
        """
        ...


class MixedStream(Protocol):
    """What a prepared stream of several datasets has beside a `PreparedStream`."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the datasets."""
        ...

    @property
    def member_samples(self) -> Sequence[int]:
        """Number of samples of each dataset."""
        ...

    def ordinals(self, epoch: int, batch: int) -> npt.NDArray[np.int64]:
        """(samples,) the samples of this rank's batch, by the numbers that workers use."""
        ...

    def adopt(self, state: Mapping[str, object]) -> tuple[int, int]:
        """As `resume`, but the mix may be changed; the epoch after the saved one begins."""
        ...

    def follow(self, before: PreparedStream, epoch: int) -> None:
        """Continues at `epoch` where the mix was before its data changed: `before` has delivered all epochs before."""
        ...

    def sources(self, epoch: int, batch: int) -> npt.NDArray[np.int16]:
        """(samples,) number of the dataset of each sample of this rank's batch."""
        ...

    def drawn(self, epoch: int, batch: int) -> npt.NDArray[np.int64]:
        """(datasets,) samples of each dataset before batch `batch` of an epoch, over all epochs and ranks."""
        ...


class Loadable(Protocol):
    """A dataset for `StreamingDataLoader`."""

    def _for_loader(self) -> LoaderSide:
        """The interface for loaders."""
        ...


class LoaderSide(Protocol):
    """The interface of a dataset for loaders."""

    @property
    def user_code(self) -> Sequence[object]:
        """User code that runs in workers; the modules that it needs are imported before they start."""
        ...

    def prepare(self, batch_size: int, last_batch: LastBatch | None) -> PreparedStream:
        """Does the I/O of this rank only: finds the manifest and fixes the order."""
        ...

    @property
    def compares(self) -> bool:
        """Whether there are other ranks to compare with."""
        ...

    def compare(self, prepare: Callable[[], PreparedStream], place: str) -> None:
        """Prepares on all ranks together: all of them agree, or all of them raise. Collective.

        Args:
            prepare: the preparation of this rank; its error is raised on every rank.
            place: epoch and batch of the start; equal on all ranks.

        Raises:
            StreamerError: of the first rank that failed.
            StateError: the ranks disagree.
        """
        ...

    def take_requested_epoch(self) -> int | None:
        """The epoch given to the dataset's `set_epoch` since the last call, if any."""
        ...

    @property
    def refreshes(self) -> bool:
        """Whether `refresh` must be called before each epoch."""
        ...

    @property
    def edition(self) -> int:
        """Number of changes of the dataset; a stream prepared before the last change is out of date."""
        ...

    def refresh(self) -> bool:
        """Lists the objects again; True: the dataset has changed and must be prepared again. Collective."""
        ...


# A user's `collate_fn`: list of samples -> batch.
Collate = Callable[[list[object]], object]
