"""Makes a batch: loads its samples, each with its own randomness, and collates them.

The same code runs in worker processes and threads (`batches/workers/worker.py`) and, with `num_workers=0`, in the
trainer itself (`loader/feed/supply.py`). An "ordinal" here is the code of a sample, see `batches/samples/plans.py`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.base.system_limits import find_shortage
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
    """A sample could not be made. The cause (`__cause__`) is its error.

    Args:
        ordinal: code of the sample.
    """

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.ordinal = ordinal


class MakerRules(msgspec.Struct, frozen=True):
    """The rules of making batches; sent to the workers.

    Attributes:
        seed: seed of the dataset.
        collate_fn: the collate function, or None for torch's rules with buffers in place of tensors.
        on_error: "raise" lets the batch of a failed sample fail. "skip" replaces the sample by another one of the
            batch, and leaves a document out of its row, unless the error is one that `may_skip` excludes.
        seed_globals: whether generators are seeded for user code. False where worker threads share them.
        ragged: fields that become `Ragged`.
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
        """Whether batches are collated by a function of the user, and not by torch's rules."""
        if self.collate_fn is None or self.collate_fn is collate_by_torch or self.ragged:
            return False
        return getattr(self.collate_fn, "__module__", "") != "torch.utils.data._utils.collate"


class Loaded(msgspec.Struct):
    """A batch from the first of its samples on, until they are collated.

    Attributes:
        epoch: epoch of the batch.
        task: number of the task, for `begin` of `BatchMaker`.
        units: the samples, or the documents of rows, that the batch is made of.
        ordinals: codes of these samples or documents.
        repeated: bool (samples,), which samples or rows repeat another one of the batch.
        members: names of the members of the batch, each with the index of its first sample; one dataset is "".
        rows: the rows of the slot, which may already contain arrays of the samples.
        seeds: seed of each sample, or None if no generators are seeded.
        made: the samples by index, in order once `load` has returned them. Of rows it has the documents until then.
        skipped: codes and errors of the samples that could not be made.
        slowest: code and nanoseconds of the slowest sample, (-1, 0) before the first one.
        packed: counts of packed rows, or None if samples are not packed.
        tallies: the samples, or the rows, without repeats, for the audit of an epoch.
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
        """The samples, or the rows, in the order of the batch."""
        return list(self.made.values())


class BatchMaker:
    """Makes batches from one source. Used by one thread.

    The caller calls `load` and then, with what that returns, `lay_out` for a batch in a slot, or `collate` for one in
    memory of its own.

    Args:
        source: makes the samples.
        rules: rules of making batches.
        begin: called with (task, ordinal, monotonic nanoseconds) before each sample, and before several samples of a
            chunk are read together. None means that no status page is kept.
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
        # The predicted layout by the name of a member: that of a batch with samples of one member, "" of all others.
        self._predicted: dict[str, PredictedLayout] | None = {} if takes_rows else None
        self._seeds_samples = rules.seed_globals and source.draws
        self._user_code = SeededCode(source.user_code)
        self._collate_code = SeededCode((rules.collate_fn,))

    def set_rounds(self, rounds: Sequence[tuple[int, ...]]) -> None:
        """Sets the rounds of the next batch of a growing dataset. Does nothing for others, whose `rounds` are ()."""
        if rounds:
            self._source.set_rounds(rounds)

    def load(
        self, epoch: int, batch: int, task: int = 0, left_out: frozenset[int] = frozenset(), memory: Bytes | None = None
    ) -> Loaded:
        """Makes the samples of a batch.

        Args:
            epoch: Epoch of the batch.
            batch: Number of the batch in the epoch.
            task: Number of the task, for `begin`.
            left_out: ordinals that are not loaded. Other samples of the batch replace them. Of rows, they are missing.
            memory: Slot of the batch, to which arrays may be written directly, or None if it is not known yet.

        Raises:
            SampleFailedError: a sample could not be made, and is not skipped.
            ChunkUnreadableError: a chunk must be leased again.
            WorkerError: no sample could be made.
            DecodeError: the documents of rows or of a bucket do not fit together.
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
        """Collates the samples to a batch that can be written to the slot; errors as of `collate`.

        Arrays that are in their rows stay there. The layout of the next batch is predicted from this one.
        """
        structure = self.collate(loaded)
        packed = WritableBatch(structure, loaded.rows)
        if self._predicted is not None:
            self._layout(self._predicted, loaded.members).learn(structure, loaded.rows, packed.claimed)
        return packed

    def collate(self, loaded: Loaded) -> object:
        """Returns the batch that the user's function, or torch's rules, make of the samples.

        Raises:
            WorkerError: the function has called `sys.exit`.
            ConfigError: torch's rules cannot make a batch of these samples. The message names field and samples.
            Exception: another error of the function or of torch's rules.
        """
        # Documents were compared when their rows were made, and rows differ in the lengths of their bounds.
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
            if (shortage := find_shortage(error)) is not None:
                raise shortage from error
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
        """Returns the times of a batch's stages until now, without `collate` and `write`.

        Args:
            load: nanoseconds that `load` took.
            before: what `clock` returned before that call.
        """
        read, decode, transform = (now - then for now, then in zip(self.clock(), before, strict=True))
        return Stages(load, read, decode, transform)

    def clock(self) -> tuple[int, int, int]:
        """Returns the nanoseconds that the source has spent so far on reading, decoding and transforming."""
        return self._source.stage_nanoseconds()

    @staticmethod
    def _layout(predicted: dict[str, PredictedLayout], members: Mapping[str, int]) -> PredictedLayout:
        only = next(iter(members)) if len(members) == 1 else ""
        return predicted.setdefault(only, PredictedLayout())

    def _fill_all(self, loaded: Loaded) -> dict[int, object]:
        """Fills each missing sample with the next one of the batch that can be made, and marks it in `repeated`.

        Returns all samples of the batch by index, in order.

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
                # The errors' tracebacks refer to the list: the cycle would keep the memory of the samples.
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
            SampleFailedError: the sample failed and is not skipped.
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
            if (shortage := find_shortage(error)) is not None:
                # It says nothing of this sample: all others would be skipped, too.
                raise SampleFailedError(ordinal) from shortage
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
