"""The seam between the loader's two halves: what a batch is made of, and how batches are moved.

A `Recipe` travels to a worker process and opens a `BatchSource` there; the ring and its workers know nothing of
manifests, chunks or decoders. `PreparedStream` and `StepSession` are what the rank's own process needs: how many
batches an epoch has, and when the chunks of a batch are local.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from streamer.config import RankConfig
from streamer.errors import Detail
from streamer.loader.batch.placement import Rows
from streamer.loader.skipping import SharedBudget, SkipRules


class ChunkUnreadableError(Exception):
    """A reader found a chunk gone or wrong: lease it again, then repeat the batch.

    Raised by `BatchSource.load` instead of the bare FileNotFoundError or IntegrityError of the chunk's file, so that
    an error of the same type from a user's transform is not taken for one.

    Args:
        chunk: its number in the manifest.
        reason: what was found, for the engine's log.
    """

    def __init__(self, chunk: int, reason: str) -> None:
        super().__init__(chunk, reason)
        self.chunk = chunk
        self.reason = reason

    def __str__(self) -> str:
        return f"chunk {self.chunk}: {self.reason}"


class BatchSource(Protocol):
    """Makes samples. Lives in one worker (or the rank itself); used by one thread at a time."""

    def batch(self, epoch: int, batch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """This rank's samples of a batch: their ordinals, and which of them are repeats that fill it up."""
        ...

    def load(self, epoch: int, ordinal: int) -> object:
        """One decoded and transformed sample.

        Raises:
            ChunkUnreadableError: the bytes are gone or wrong.
        """
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


@runtime_checkable
class BatchedSource(Protocol):
    """A source that is told of a whole batch, and that can write samples to where they will lie."""

    @property
    def draws(self) -> bool:
        """Whether code runs for a sample that may draw from the global generators: the user's own."""
        ...

    @property
    def takes_rows(self) -> bool:
        """Whether it may write arrays to the rows that it is offered."""
        ...

    def begin(self, ordinals: npt.NDArray[np.int64], rows: Rows | None, at: Callable[[int], None]) -> None:
        """The samples of a batch, by index; `load_at` follows for each.

        Args:
            ordinals: one for each index.
            rows: where arrays may be written; None: nowhere, and nothing is read before `load_at`.
            at: called with an ordinal before that sample, and those beside it, are read.

        Raises:
            ChunkUnreadableError: the bytes of one are gone or wrong.
        """
        ...

    def load_at(self, epoch: int, ordinal: int, index: int) -> object:
        """One sample, for a index of the batch that was begun; not necessarily the one it was begun with.

        Raises:
            ChunkUnreadableError: the bytes are gone or wrong.
        """
        ...


@runtime_checkable
class StagedSource(Protocol):
    """A source that knows where its time goes."""

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Read, decode, transform: nanoseconds since it was opened, never falling."""
        ...


class Recipe(Protocol):
    """How to open a `BatchSource`; cloudpickled once to each worker, brings no torch along by itself."""

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
    """The engine's promise that the chunks of a step are local. Used by one thread.

    Steps count the batches of all epochs since the session began, without a gap at the end of an epoch.
    """

    @property
    def ready(self) -> int:
        """All chunks of the steps up to and including this one are local.

        Raises:
            StreamerError: what the engine reported.
        """
        ...

    def step_of(self, epoch: int, batch: int) -> int:
        """The step of a batch at or after the session's start."""
        ...

    def want(self, step: int) -> None:
        """Asks for the chunks of all steps up to and including this one; returns at once."""
        ...

    def wait(self, step: int, timeout_seconds: float | None = None) -> None:
        """Blocks until `ready >= step`.

        Raises:
            StreamerError: what the engine reported.
            TimeoutError: not in time.
        """
        ...

    def done(self, step: int, *, flush: bool = True) -> None:
        """The steps below this one are consumed; not `flush`: the engine hears it with the next `want`."""
        ...

    def reject(self, chunk: int, reason: str) -> None:
        """A reader found this chunk gone or wrong; `ready` goes back until it is right."""
        ...

    def fileno(self) -> int:
        """Readable when there is something for `pump`; may change after it."""
        ...

    def pump(self, timeout_seconds: float = 0.0) -> None:
        """Takes in what the engine sent."""
        ...

    def engine_values(self, timeout_seconds: float) -> Mapping[str, object] | None:
        """What the engine counts (any thread), and `consumer`, `job` and `dataset` of this session.

        None: there is no engine, or it does not answer in time.
        """
        ...

    def close(self) -> None:
        """Ends the leases; idempotent."""
        ...


@runtime_checkable
class RankedStream(Protocol):
    """A prepared stream that knows its index among the ranks."""

    @property
    def rank_config(self) -> RankConfig:
        """The index."""
        ...


class PreparedStream(Protocol):
    """A dataset made ready for one batch size: everything about it but the moving of batches."""

    @property
    def seed(self) -> int:
        """What the order and every sample's randomness are drawn from."""
        ...

    @property
    def skip_rules(self) -> SkipRules:
        """What the data set says of samples that cannot be made; the loader's own word counts before it."""
        ...

    def sample_key(self, ordinal: int) -> str:
        """Names a sample for people."""
        ...

    def shared_budget(self) -> SharedBudget | None:
        """Counts skipped samples over all ranks, once per loader; None: this rank is alone."""
        ...

    def facts(self) -> Mapping[str, Detail]:
        """What must be equal on all ranks."""
        ...

    def plan(self, epoch: int) -> Plan:
        """The batches of this rank in an epoch, counted from the epoch's start also after `resume`."""
        ...

    def recipe(self) -> Recipe:
        """For the workers."""
        ...

    def session(self, epoch: int, start_batch: int) -> StepSession:
        """Opens a session whose step 0 is that batch."""
        ...

    def state(self, epoch: int, batch: int) -> dict[str, object]:
        """What to save when `batch` batches of `epoch` were delivered."""
        ...

    def resume(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Takes a saved state over: returns the epoch and its first batch that is still to come.

        Raises:
            StateError: the state is of another dataset, order or seed, or lies inside one of the batches.
        """
        ...


class Loadable(Protocol):
    """A dataset that `StreamingDataLoader` takes."""

    def _for_loader(self) -> LoaderSide:
        """What a loader needs of it and its user does not."""
        ...


class LoaderSide(Protocol):
    """The side of a dataset that a loader uses."""

    @property
    def user_code(self) -> Sequence[object]:
        """What runs in workers: the modules that it needs are imported before they start."""
        ...

    def prepare(self, batch_size: int, drop_last: bool) -> PreparedStream:
        """Does the I/O: finds the manifest, fixes the order. Of this rank alone."""
        ...

    @property
    def compares(self) -> bool:
        """Whether there are other ranks to compare with."""
        ...

    def compare(self, prepare: Callable[[], PreparedStream], place: str) -> None:
        """Prepares on all ranks together: all of them agree, or all of them raise. Collective.

        Args:
            prepare: what this rank does; its error arrives on every rank.
            place: where this rank begins; equal on all.

        Raises:
            StreamerError: of the first rank that failed.
            StateError: the ranks disagree.
        """
        ...

    def take_requested_epoch(self) -> int | None:
        """The epoch that `set_epoch` of the dataset has named since the last call."""
        ...

    @property
    def refreshes(self) -> bool:
        """Whether `refresh` is to be called before each epoch."""
        ...

    @property
    def edition(self) -> int:
        """How often it has become something else: what was prepared before the last time is out of date."""
        ...

    def refresh(self) -> bool:
        """Looks again at what there is; True: it is something else, to be prepared anew. Collective."""
        ...


# What a user's `collate_fn` is: a list of samples in, a batch out.
Collate = Callable[[list[object]], object]
