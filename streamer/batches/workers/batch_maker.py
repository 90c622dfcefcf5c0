"""Makes a batch: loads its samples, each with its own randomness, and collates them.

The same code runs in a worker process, in a worker thread and, with `num_workers=0`, in the trainer itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.batch.buffers import Bytes
from streamer.batches.batch.collate import collate_by_torch
from streamer.batches.batch.mismatch import check_fields, explain
from streamer.batches.batch.placement import NO_SLOT, PredictedLayout, Rows
from streamer.batches.batch.slot_layout import WritableBatch
from streamer.batches.causes import Stages
from streamer.batches.rows.options import NO_PACKING, AnyPacking
from streamer.batches.rows.pieces import PackedCounts
from streamer.batches.samples.cached_bytes import ChunkUnreadableError
from streamer.batches.samples.recipe import StreamReader
from streamer.batches.samples.seeding import SeededCode, collate_seed, sample_seeds
from streamer.batches.samples.units import BatchUnits, Collate, find_units
from streamer.batches.skipping import OnError, may_skip
from streamer.errors import ConfigError, WorkerError
from streamer.order.audit import Tally, tallies


class SampleFailedError(Exception):
    """Loading a sample has failed; the cause is its error."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.ordinal = ordinal


class MakerRules(msgspec.Struct, frozen=True):
    """The rules of making batches; sent to the workers.

    Attributes:
        seed: of the dataset.
        collate_fn: the user's, or None for torch's rules.
        on_error: "raise": a failed sample fails its batch; "skip": another sample of the batch replaces it.
        ragged: fields that are joined, not stacked.
        seed_globals: whether the global generators are seeded for user code; false where threads share them.
        packing: how documents are packed into rows, which are the samples then.
    """

    seed: int
    collate_fn: Collate | None = None
    on_error: OnError = "raise"
    seed_globals: bool = True
    ragged: tuple[str, ...] = ()
    packing: AnyPacking = NO_PACKING

    @property
    def own_collate(self) -> bool:
        """Whether batches are collated by a function of the user."""
        if self.collate_fn is None or self.collate_fn is collate_by_torch or self.ragged:
            return False
        return getattr(self.collate_fn, "__module__", "") != "torch.utils.data._utils.collate"


class Loaded(msgspec.Struct):
    """A batch from the first of its samples on, until they are collated.

    Attributes:
        epoch: its epoch.
        task: number of the task, for `begin` of `BatchMaker`.
        units: what it is made of.
        ordinals: of its samples, or of the documents of its rows.
        repeated: bool (samples,): samples or rows that repeat another one of the batch.
        members: of a mix: the names of its members, each with the index of its first sample.
        rows: the rows of the slot that may already contain arrays of the samples.
        seeds: seed of each sample, or None if no user code runs that could draw.
        made: the samples, or the rows, by index, in order once complete; of rows the documents until then.
        skipped: ordinals and errors of the samples that could not be made.
        slowest: ordinal and nanoseconds of the slowest sample.
        packed: counts of packed rows; None: samples are not packed.
        tallies: the samples, or the rows, without repeats.
    """

    epoch: int
    task: int
    units: BatchUnits
    ordinals: list[int]
    repeated: npt.NDArray[np.bool_]
    members: Mapping[str, int]
    rows: Rows
    seeds: list[int] | None
    made: dict[int, object] = msgspec.field(default_factory=dict)
    skipped: list[tuple[int, BaseException]] = msgspec.field(default_factory=list)
    slowest: tuple[int, int] = (-1, 0)
    packed: PackedCounts | None = None
    tallies: tuple[Tally, ...] = ()

    @property
    def samples(self) -> list[object]:
        """The samples, in the order of the batch."""
        return list(self.made.values())


class BatchMaker:
    """Makes batches from one source. Used by one thread.

    Args:
        source: of the samples.
        rules: of making batches.
        begin: called before each sample with (task, ordinal, monotonic nanoseconds), for the status page.
    """

    def __init__(
        self, source: StreamReader, rules: MakerRules, begin: Callable[[int, int, int], object] | None = None
    ) -> None:
        self._source = source
        self._rules = rules
        self._begin = begin
        # A user's collate_fn may keep its samples, so they are never in memory that is reused.
        self._units = find_units(rules.packing)
        takes_rows = rules.collate_fn is None and (self._units.take_rows or source.takes_rows)
        # A mix with batches of one member each has a layout for each name.
        self._predicted: dict[str, PredictedLayout] | None = {} if takes_rows else None
        self._seeds_samples = rules.seed_globals and source.draws
        self._user_code = SeededCode(source.user_code)
        self._collate_code = SeededCode((rules.collate_fn,))

    def set_rounds(self, rounds: Sequence[tuple[int, ...]]) -> None:
        """Sets the rounds of the next batch of a growing dataset; without rounds it does nothing."""
        if rounds:
            self._source.set_rounds(rounds)

    def load(
        self, epoch: int, batch: int, task: int = 0, left_out: frozenset[int] = frozenset(), memory: Bytes | None = None
    ) -> Loaded:
        """Loads the samples of a batch.

        Args:
            epoch: Epoch of the batch.
            batch: its number in the epoch.
            task: Task for `begin`.
            left_out: ordinals that are not loaded; other samples replace them.
            memory: Slot of the batch, to which arrays may be written directly, or None if it is not known yet.

        Raises:
            SampleFailedError: a sample could not be made (and `on_error` is "raise").
            ChunkUnreadableError: a chunk must be leased again.
            WorkerError: no sample could be made.
        """
        codes, repeated = self._source.batch(epoch, batch)
        members = self._source.first_of_each(codes)
        units = self._units.begin_batch(self._source, epoch, codes)
        # Samples are read one by one if some are left out: those that crashed a worker must not be read at all.
        rows: Rows = NO_SLOT
        if self._predicted is not None and memory is not None and not left_out:
            rows = self._layout(self._predicted, members).rows(memory, repeated.size)
        seeds = sample_seeds(self._rules.seed, epoch, units.ordinals) if self._seeds_samples else None
        loaded = Loaded(
            epoch=epoch,
            task=task,
            units=units,
            ordinals=units.ordinals.tolist(),
            repeated=repeated.copy(),
            members=members,
            rows=rows,
            seeds=seeds,
        )
        units.begin(rows, partial(self._at, task, loaded.ordinals), singly=bool(left_out))
        for index, ordinal in enumerate(loaded.ordinals):
            if ordinal not in left_out:
                self._take(loaded, index, index)
        loaded.made, loaded.packed = units.complete(loaded.made, rows, partial(self._fill_all, loaded))
        filled = loaded.repeated[~repeated]
        loaded.tallies = tallies(epoch, codes[~repeated], filled if filled.any() else None)
        return loaded

    def lay_out(self, loaded: Loaded) -> WritableBatch:
        """Collates the samples, and assigns their buffers to offsets; arrays in rows stay in place."""
        structure = self.collate(loaded)
        packed = WritableBatch(structure, loaded.rows)
        if self._predicted is not None:
            self._layout(self._predicted, loaded.members).learn(structure, loaded.rows, packed.claimed)
        return packed

    def collate(self, loaded: Loaded) -> object:
        """Collates by the user's function or by torch's rules.

        Raises:
            WorkerError: the function has called `sys.exit`.
            ConfigError: torch's rules cannot make a batch of these samples; names field and samples.
        """
        # The documents of rows were compared when these were made, and their bounds differ.
        if len(loaded.members) > 1 and loaded.units.are_compared and not self._rules.own_collate:
            check_fields(loaded.samples, loaded.members, self._rules.ragged)
        collate_fn = self._rules.collate_fn
        samples = loaded.samples
        try:
            if collate_fn is None:
                return loaded.units.collate(samples, self._rules.ragged)
            if not self._rules.seed_globals:
                return collate_fn(samples)
            seed = collate_seed(self._rules.seed, loaded.epoch, loaded.ordinals[0])
            return self._collate_code.run(seed, collate_fn, samples)
        except Exception as error:
            if isinstance(error, ConfigError) and error.details.get("field") == "ragged":
                raise
            torch = sys.modules.get("torch")
            rules = (None, collate_by_torch, None if torch is None else torch.utils.data.default_collate)
            cause = explain(samples) if collate_fn in rules else None
            if cause is None:
                raise
            raise cause from error
        except SystemExit as error:
            raise WorkerError(f"the collate_fn has called sys.exit({error.code!r}); raise an exception") from error

    def stages(self, load: int, before: tuple[int, int, int]) -> Stages:
        """Returns the stages of a batch whose loading took `load` nanoseconds since the source's clock was `before`."""
        read, decode, transform = (now - then for now, then in zip(self.clock(), before, strict=True))
        return Stages(load, read, decode, transform)

    def clock(self) -> tuple[int, int, int]:
        """The source's read, decode and transform nanoseconds so far; zeros if it does not measure them."""
        return self._source.stage_nanoseconds()

    @staticmethod
    def _layout(predicted: dict[str, PredictedLayout], members: Mapping[str, int]) -> PredictedLayout:
        only = next(iter(members)) if len(members) == 1 else ""
        return predicted.setdefault(only, PredictedLayout())

    def _fill_all(self, loaded: Loaded) -> dict[int, object]:
        """Fills each missing sample with the next one of the batch that can be made, and marks it in `repeated`.

        Returns all samples by index, in order.

        Raises:
            WorkerError: all samples of the batch failed.
        """
        count = len(loaded.ordinals)
        missing = [index for index in range(count) if index not in loaded.made]
        for index in missing:
            # The other sample is made again, so that no object is shared.
            for other in (at % count for at in range(index + 1, index + count)):
                if other not in missing and self._take(loaded, index, other):
                    loaded.repeated[index] = True
                    break
            else:
                last = loaded.skipped[-1][1] if loaded.skipped else None
                # The tracebacks of errors refer to the list, a cycle that would keep the memory of the samples.
                loaded.skipped.clear()
                raise WorkerError(
                    f"all {count} samples of a batch failed; the last error is the cause", epoch=loaded.epoch
                ) from last
        return dict(sorted(loaded.made.items()))

    def _at(self, task: int, ordinals: Sequence[int], index: int) -> None:
        if self._begin is not None:
            self._begin(task, ordinals[index], time.monotonic_ns())

    def _take(self, loaded: Loaded, index: int, source: int) -> bool:
        """Makes the sample of index `source` and puts it at `index`; returns whether it could be made.

        A failed sample that may be skipped is added to `skipped`.

        Raises:
            ChunkUnreadableError: a chunk must be leased again.
            SampleFailedError: it failed, and errors are raised.
        """
        ordinal = loaded.ordinals[source]
        started = time.monotonic_ns()
        if self._begin is not None:
            self._begin(loaded.task, ordinal, started)
        load = partial(self._source.load_at, loaded.epoch, ordinal)
        try:
            seed = None if loaded.seeds is None else loaded.seeds[source]
            sample = load(index) if seed is None else self._user_code.run(seed, load, index)
            loaded.made[index] = loaded.units.keep(sample, source)
        except ChunkUnreadableError:
            raise
        except Exception as error:
            if self._rules.on_error == "raise" or not may_skip(error):
                raise SampleFailedError(ordinal) from error
            loaded.skipped.append((ordinal, error))
            return False
        if (spent := time.monotonic_ns() - started) > loaded.slowest[1]:
            loaded.slowest = ordinal, spent
        return True


class Stopwatch:
    """Measures the nanoseconds between two laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter_ns()

    def lap(self) -> int:
        """Returns the nanoseconds since the last lap, and begins the next one."""
        last, self._last = self._last, time.perf_counter_ns()
        return self._last - last
