"""A dataset without engine, manifest and files, for tests and benchmarks of the loader.

Its order is a formula, and its chunks are always local unless a test holds them back. Everything else takes the same
path as real data.
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
    """Samples 0..samples-1, rotated by the epoch, cut into batches; the last one may be filled from the front."""

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
        """Opens the source."""
        return FakeSource(self) if self.draws else QuietSource(self)


class FakeSource:
    """Stands in for `StreamReader`: reads sample by sample, and measures nothing. See `FakeRecipe`."""

    draws = True
    takes_rows = False
    user_code: tuple[object, ...] = ()

    def __init__(self, recipe: FakeRecipe) -> None:
        self._recipe = recipe

    def begin(self, epoch: int, ordinals: npt.NDArray[np.int64], rows: object, at: Callable[[int], None]) -> None:
        """There are no chunks to read."""

    def load_at(self, epoch: int, ordinal: int, index: int) -> object:
        """One sample, wherever it is in the batch."""
        return self.load(epoch, ordinal)

    def first_of_each(self, ordinals: npt.NDArray[np.int64]) -> dict[str, int]:
        """One dataset."""
        return {}

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Nothing is measured."""
        return 0, 0, 0

    def batch(self, epoch: int, batch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Ordinals, and which are repeats."""
        recipe = self._recipe
        stop = (batch + 1) * recipe.batch_size
        if check_last_batch(recipe.last_batch, 1) == "short":
            stop = min(stop, recipe.samples)
        positions = np.arange(batch * recipe.batch_size, stop)
        return (positions + epoch) % recipe.samples, positions >= recipe.samples

    def load(self, epoch: int, ordinal: int) -> object:
        """One sample."""
        return self._recipe.make(epoch, ordinal)


class QuietSource(FakeSource):
    """Samples that draw from no generator, like raw data without a transform; no generator is seeded for them."""

    draws = False


class FakeSession:
    """All chunks are local immediately; with `held_back`, those of the steps up to `allow`.

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
        """Batches since the start."""
        return epoch * self._prepared.batches + batch - self._start

    def allow(self, step: int) -> None:
        """Steps up to this one become local; any thread."""
        self._allowed = step
        os.eventfd_write(self._event, 1)

    def fail(self, error: StreamerError) -> None:
        """The engine reports this; any thread."""
        self.error = error
        os.eventfd_write(self._event, 1)

    def want(self, step: int) -> None:
        """Remembers it."""
        self._wanted = max(self._wanted, step)

    def wait(self, step: int, timeout_seconds: float | None = None) -> None:
        """Until `allow`.

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
        """Remembers it."""
        self.consumed = max(self.consumed, step)

    def reject(self, chunk: int, reason: str) -> None:
        """Remembers it."""
        self.rejected.append((chunk, reason))
        self._prepared.on_reject(chunk)

    def rounds(self, step: int) -> tuple[tuple[int, ...], ...]:
        """The dataset does not grow."""
        return ()

    def fileno(self) -> int:
        """Readable after `allow` and `fail`."""
        return self._event

    def pump(self, timeout_seconds: float = 0.0) -> None:
        """Receives the steps that `allow` has released."""
        ready, _, _ = select.select([self._event], [], [], None if timeout_seconds < 0 else timeout_seconds)
        if ready:
            os.eventfd_read(self._event)

    def engine_values(self, timeout_seconds: float) -> Mapping[str, object] | None:
        """The values set in the prepared stream."""
        return self._prepared.engine_values

    def send_report(self, finding: ReportFinding | Exception, timeout_seconds: float) -> None:
        """Gives it to the function set in the prepared stream."""
        self._prepared.on_finding(finding)

    def close(self) -> None:
        """Idempotent."""
        if not self.closed:
            self.closed = True
            os.close(self._event)


@dataclass
class FakePrepared:
    """Stands in for `RankStream` over a `FakeRecipe`.

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
        """The only rank."""
        return RankConfig()

    @property
    def names(self) -> list[str]:
        """One dataset, not a mix."""
        return []

    def measure_growth(self, epoch: int, batch: int) -> None:
        """It does not grow."""

    def count_drawn(self, epoch: int, batch: int) -> dict[str, MemberCount]:
        """One dataset, not a mix."""
        return {}

    def follow(self, before: FakePrepared, epoch: int) -> None:
        """Epochs of changed data begin anew."""

    def sample_key(self, ordinal: int) -> str:
        """Its number."""
        return f"#{ordinal}"

    def sample_label(self, ordinal: int) -> str:
        """Its number."""
        return str(ordinal)

    def describe_skip(self, ordinal: int, cause: str) -> Skipped:
        """The record of a sample that was replaced."""
        return Skipped(ordinal, self.sample_key(ordinal), cause)

    def open_budget(self) -> StoreBudget | None:
        """The test's budget; None: there are no other ranks."""
        return self.shared

    def facts(self) -> dict[str, Detail]:
        """There are no facts to compare."""
        return {}

    def plan(self, epoch: int) -> FakeRecipe:
        """Every epoch has the same number of batches."""
        return self.made

    def recipe(self) -> FakeRecipe:
        """For workers."""
        return self.made

    def session(self, epoch: int, start_batch: int) -> FakeSession:
        """Opens one."""
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
        """Epoch and batch."""
        return {"epoch": epoch, "batch": batch, "batch_size": self.made.batch_size}

    def position(self, epoch: int, batch: int) -> int:
        """Of the only rank."""
        return batch * self.made.batch_size

    def check_rank(self) -> None:
        """There is one rank."""

    def record(self, epoch: int, batch: int) -> Record:
        """An empty record."""
        return Record.begin(epoch, self.position(epoch, batch), self.made.samples, (0, 1), dense=True)

    def resume(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Epoch and batch.

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
    """A dataset for `StreamingDataLoader`.

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
        """Prepares the dataset."""
        recipe = FakeRecipe(self._samples, batch_size, self._make, last_batch, draws=self._draws)
        self.prepared = FakePrepared(
            recipe, held_back=self._held_back, shared=self._shared, skip_rules=self._skip_rules
        )
        return self.prepared

    def rank_config(self) -> RankConfig:
        """There is one rank."""
        return RankConfig()

    def note_rank(self, stream: FakePrepared) -> None:
        """There is nothing to note."""

    @property
    def compares(self) -> bool:
        """There are no other ranks."""
        return False

    def prepare_and_share(self, prepare: Callable[[], FakePrepared], place: str) -> None:
        """Prepares this rank only."""
        prepare()

    def take_epoch(self) -> int | None:
        """The value of `requested_epoch`, once."""
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
