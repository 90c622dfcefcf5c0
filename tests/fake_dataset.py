"""A dataset without engine, manifest and files, for tests and benchmarks of the loader.

It stands for `StreamingDataset`: loader, workers and skipping take the same path as with real data. Unlike one, its
order is a formula, its chunks are always local unless a test holds them back, and there is one rank.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamer.batches.rows.options import NO_PACKING, NoPacking
from streamer.batches.samples.opened import Members
from streamer.batches.skipping import OnError, Skipped, SkipRules, StoreBudget
from streamer.config import RankConfig
from streamer.errors import Detail, StateError, StreamerError
from streamer.loader.options.arguments import Skip, skip_rules
from streamer.order.audit import Record
from streamer.order.plan import LastBatch, batch_count, check_last_batch
from streamer.wire.messages import ReportFinding

if TYPE_CHECKING:  # it imports torch, which workers do without
    from streamer.loader.kinds.kind import MemberCount

# (epoch, ordinal) -> sample
MakeSample = Callable[[int, int], object]


@dataclass(frozen=True)
class FakeRecipe:
    """Stands for the recipe that workers get: samples 0..samples-1, rotated by the epoch, cut into batches.

    The last batch may be filled from the front. Unlike a real recipe, it names no chunks and no manifest.
    """

    samples: int
    batch_size: int
    make: MakeSample
    last_batch: LastBatch | None = None
    draws: bool = field(default=True, kw_only=True)
    members: tuple[()] = field(default=(), kw_only=True)

    @property
    def batches(self) -> int:
        """Batches in an epoch."""
        return batch_count(self.samples, self.batch_size, check_last_batch(self.last_batch, 1))

    def open(self) -> FakeSource:
        """Opens the source, as a worker does."""
        return FakeSource(self) if self.draws else QuietSource(self)


class FakeSource:
    """Stands in for `StreamReader`: reads sample by sample, and measures nothing. See `FakeRecipe`.

    Unlike it, it has no chunks, no members and no rows that are packed.
    """

    draws = True
    takes_rows = False
    user_code: tuple[object, ...] = ()

    def __init__(self, recipe: FakeRecipe) -> None:
        self._recipe = recipe

    def begin(self, epoch: int, ordinals: npt.NDArray[np.int64], rows: object, at: Callable[[int], None]) -> None:
        """Does nothing, because there are no chunks to read."""

    def load_at(self, epoch: int, ordinal: int, index: int) -> object:
        """Returns one sample, wherever it is in the batch."""
        return self.load(epoch, ordinal)

    def first_of_each(self, ordinals: npt.NDArray[np.int64]) -> dict[str, int]:
        """Returns nothing, because there is one dataset."""
        return {}

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Returns zeros, because nothing is measured."""
        return 0, 0, 0

    def batch(self, epoch: int, batch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Returns the ordinals of a batch, and which are repeats."""
        recipe = self._recipe
        stop = (batch + 1) * recipe.batch_size
        if check_last_batch(recipe.last_batch, 1) == "short":
            stop = min(stop, recipe.samples)
        positions = np.arange(batch * recipe.batch_size, stop)
        return (positions + epoch) % recipe.samples, positions >= recipe.samples

    def load(self, epoch: int, ordinal: int) -> object:
        """Makes one sample."""
        return self._recipe.make(epoch, ordinal)


class QuietSource(FakeSource):
    """Stands for raw data without a transform: samples draw from no generator, so that none is seeded for them."""

    draws = False


class FakeSession:
    """Stands in for a session with the engine: all chunks are local at once, or with `held_back` up to `allow`.

    It wakes the loader by a descriptor, as the engine's socket does. It fetches nothing, and it keeps what it is told.

    Attributes:
        rejected: (chunk, reason) in order.
        consumed: the highest step given to `finish`.
    """

    poll_seconds = None

    def __init__(self, prepared: FakePrepared, epoch: int, start_batch: int) -> None:
        self._prepared = prepared
        self._start = epoch * prepared.batches + start_batch
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._wanted = -1
        self._allowed = -1 if prepared.held_back else 1 << 62
        self.error: StreamerError | None = None
        self.rejected: list[tuple[int, str]] = []
        self.consumed = 0
        self.closed = False

    @property
    def ready(self) -> int:
        """The last step that is local."""
        if self.error is not None:
            raise self.error
        return min(self._wanted, self._allowed)

    def step_of(self, epoch: int, batch: int) -> int:
        """Returns the batches since the start."""
        return epoch * self._prepared.batches + batch - self._start

    def allow(self, step: int) -> None:
        """Makes steps up to this one local; any thread."""
        self._allowed = step
        os.eventfd_write(self._event, 1)

    def fail(self, error: StreamerError) -> None:
        """Reports an error as the engine does; any thread."""
        self.error = error
        os.eventfd_write(self._event, 1)

    def want(self, step: int) -> None:
        """Remembers the step that is wanted."""
        self._wanted = max(self._wanted, step)

    def wait(self, step: int, timeout_seconds: float | None = None) -> None:
        """Waits until `allow` has released the step.

        Raises:
            TimeoutError: the time is over.
        """
        self.want(step)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while self.ready < step:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"step {step}")
            self.pump(-1 if deadline is None else max(0.0, deadline - time.monotonic()))

    def finish(self, step: int, *, flush: bool = True) -> None:
        """Remembers the highest step that is consumed."""
        self.consumed = max(self.consumed, step)

    def reject(self, chunk: int, reason: str) -> None:
        """Remembers the rejected chunk, and tells the prepared stream."""
        self.rejected.append((chunk, reason))
        self._prepared.on_reject(chunk)

    def rounds(self, step: int) -> tuple[tuple[int, ...], ...]:
        """Returns none, because the dataset does not grow."""
        return ()

    def fileno(self) -> int:
        """Returns a descriptor that is readable after `allow` and `fail`."""
        return self._event

    def pump(self, timeout_seconds: float = 0.0) -> None:
        """Receives the steps that `allow` has released."""
        ready, _, _ = select.select([self._event], [], [], None if timeout_seconds < 0 else timeout_seconds)
        if ready:
            os.eventfd_read(self._event)

    def engine_values(self, timeout_seconds: float) -> Mapping[str, object] | None:
        """Returns the values set in the prepared stream."""
        return self._prepared.engine_values

    def send_report(self, finding: ReportFinding | Exception, timeout_seconds: float) -> None:
        """Gives the finding to the function set in the prepared stream."""
        self._prepared.on_finding(finding)

    def close(self) -> None:
        """Closes the descriptor; may be called again."""
        if not self.closed:
            self.closed = True
            os.close(self._event)


@dataclass
class FakePrepared:
    """Stands in for `RankStream` over a `FakeRecipe`: gives recipes, sessions and states, without an engine.

    Unlike it, it knows one rank and no mix, and the data never grow within an epoch.

    Attributes:
        made: the recipe.
        seed: of the order and of each sample.
        held_back: sessions wait for `allow`.
        on_reject: called with each rejected chunk.
        sessions: all that were opened.
        shared: counts skipped samples.
        skip_rules: of the dataset.
        engine_values: the counters of the fake engine; None: there is no engine.
        on_finding: called with what the loader sends to the engine.
        packing: samples are not packed.
        members: none.
    """

    made: FakeRecipe
    seed: int = 17
    held_back: bool = False
    on_reject: Callable[[int], None] = lambda chunk: None
    sessions: list[FakeSession] = field(default_factory=list)
    shared: StoreBudget | None = None
    skip_rules: SkipRules = field(default_factory=SkipRules)
    engine_values: Mapping[str, object] | None = None
    on_finding: Callable[[ReportFinding | Exception], object] = lambda finding: None
    packing: NoPacking = NO_PACKING
    members: Members = field(default_factory=lambda: Members(()))
    _opened: threading.Event = field(default_factory=threading.Event, init=False, repr=False, compare=False)

    @property
    def batches(self) -> int:
        """Batches in an epoch."""
        return self.made.batches

    @property
    def rank_config(self) -> RankConfig:
        """The configuration of the only rank."""
        return RankConfig()

    @property
    def names(self) -> list[str]:
        """Names of the members: none, because it is no mix."""
        return []

    def measure_growth(self, epoch: int, batch: int) -> None:
        """Does nothing, because the dataset does not grow."""

    def count_drawn(self, epoch: int, batch: int) -> dict[str, MemberCount]:
        """Returns nothing, because it is no mix."""
        return {}

    def follow(self, before: FakePrepared, epoch: int) -> None:
        """Does nothing, because epochs of changed data begin anew."""

    def sample_key(self, ordinal: int) -> str:
        """Returns the sample's number as its key."""
        return f"#{ordinal}"

    def sample_label(self, ordinal: int) -> str:
        """Returns the sample's number as its label."""
        return str(ordinal)

    def describe_skip(self, ordinal: int, cause: str) -> Skipped:
        """Returns the record of a sample that was replaced."""
        return Skipped(ordinal, self.sample_key(ordinal), cause)

    def open_budget(self) -> StoreBudget | None:
        """Returns the test's budget, or None where there are no other ranks."""
        return self.shared

    def facts(self) -> dict[str, Detail]:
        """Returns none, because there are no ranks to compare with."""
        return {}

    def plan(self, epoch: int) -> FakeRecipe:
        """Returns the recipe, because each epoch has the same number of batches."""
        return self.made

    def recipe(self) -> FakeRecipe:
        """Returns the recipe for workers."""
        return self.made

    def session(self, epoch: int, start_batch: int) -> FakeSession:
        """Opens a session, and keeps it in `sessions`."""
        self.sessions.append(FakeSession(self, epoch, start_batch))
        self._opened.set()
        return self.sessions[-1]

    def first_session(self, timeout_seconds: float = 60.0) -> FakeSession:
        """Waits until the loader has opened a session.

        Raises:
            TimeoutError: it has opened none in time.
        """
        if not self._opened.wait(timeout_seconds):
            raise TimeoutError(f"no session was opened within {timeout_seconds} s")
        return self.sessions[0]

    def state(self, epoch: int, batch: int) -> dict[str, object]:
        """Returns epoch, batch and batch size."""
        return {"epoch": epoch, "batch": batch, "batch_size": self.made.batch_size}

    def position(self, epoch: int, batch: int) -> int:
        """Returns the position of the only rank."""
        return batch * self.made.batch_size

    def check_rank(self) -> None:
        """Does nothing, because there is one rank."""

    def record(self, epoch: int, batch: int) -> Record:
        """Returns an empty record of the epoch."""
        return Record.begin(epoch, self.position(epoch, batch), self.made.samples, (0, 1), dense=True)

    def resume(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Returns epoch and batch.

        Raises:
            StateError: another batch size.
        """
        if state["batch_size"] != self.made.batch_size:
            raise StateError(f"the state has batch_size={state['batch_size']}", field="batch_size")
        epoch, batch = state["epoch"], state["batch"]
        assert isinstance(epoch, int)
        assert isinstance(batch, int)
        return epoch, batch


class FakeDataset:
    """Stands for `StreamingDataset` in a `StreamingDataLoader`; its samples are what `make` returns.

    Args:
        samples: their number.
        make: (epoch, ordinal) -> sample.
        held_back: sessions wait for `allow`.
        shared: counts skipped samples.
        on_error: as of a dataset.
        last_batch: as of the `Order` of a dataset.
        draws: whether `make` may draw from the global generators.
    """

    def __init__(
        self,
        samples: int,
        make: MakeSample,
        *,
        held_back: bool = False,
        shared: StoreBudget | None = None,
        on_error: OnError | Skip = "raise",
        last_batch: LastBatch | None = None,
        draws: bool = True,
    ) -> None:
        self._samples = samples
        self._skip_rules = skip_rules(on_error)
        self.last_batch = last_batch
        self._make = make
        self._held_back = held_back
        self._shared = shared
        self._draws = draws
        self.requested_epoch: int | None = None
        self.grown: int | None = None
        self.edition = 0
        self.begun = False
        self.prepared: FakePrepared | None = None

    def _get_opening(self) -> FakeDataset:
        return self

    @property
    def user_code(self) -> tuple[object, ...]:
        """The function that makes samples."""
        return (self._make,)

    def prepare(self, batch_size: int, last_batch: LastBatch | None) -> FakePrepared:
        """Prepares the dataset, and keeps it in `prepared`."""
        recipe = FakeRecipe(self._samples, batch_size, self._make, last_batch, draws=self._draws)
        self.prepared = FakePrepared(
            recipe, held_back=self._held_back, shared=self._shared, skip_rules=self._skip_rules
        )
        return self.prepared

    def rank_config(self) -> RankConfig:
        """Returns the configuration of the only rank."""
        return RankConfig()

    def note_rank(self, stream: FakePrepared) -> None:
        """Does nothing, because there is nothing to note."""

    @property
    def compares(self) -> bool:
        """Whether ranks compare: never, because there is one."""
        return False

    def prepare_and_share(self, prepare: Callable[[], FakePrepared], place: str) -> None:
        """Prepares this rank alone, and shares nothing."""
        prepare()

    def take_epoch(self) -> int | None:
        """Returns the value of `requested_epoch`, once."""
        requested_epoch, self.requested_epoch = self.requested_epoch, None
        return requested_epoch

    @property
    def refreshes(self) -> bool:
        """Whether `grown` is set."""
        return self.grown is not None

    def refresh(self) -> bool:
        """Changes the number of samples to `grown`."""
        before, self._samples = self._samples, self._samples if self.grown is None else self.grown
        self.edition += before != self._samples
        return before != self._samples
