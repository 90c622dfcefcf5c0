"""Iterates over the samples of one worker's share of one epoch, in order: the iterator of `iter(dataset)`.

`loader/epoch_dataset.py` makes it, for a bare loop or in a worker of a plain DataLoader.
"""

from __future__ import annotations

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
import numpy as np

from streamer.batches.rows.options import AnyPacking, Buckets, Packing
from streamer.batches.samples.maker import SampleLocation
from streamer.batches.samples.recipe import StreamMaker
from streamer.batches.skipping import SkipLedger, may_skip
from streamer.batches.waiting import WaitNotice
from streamer.errors import ClosedError, StateError
from streamer.loader.kinds.step_session import Integers, Share, StepSession, read_leased
from streamer.loader.rank.rank_stream import RankStream

if TYPE_CHECKING:
    from streamer.batches.rows.assemble import Document

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


class IterationProgress(msgspec.Struct):
    """Keeps the progress of an iterator, and outlives it, so that a dataset has a state after a loop was left.

    Attributes:
        epoch: The running epoch.
        share: Part of the rank's batches that this process makes.
        delivered: Number of samples yielded since batch `share.first`, and of those that a short last batch lacks.
    """

    epoch: int
    share: Share
    delivered: int = 0

    def state(self, prepared: RankStream) -> dict[str, object]:
        """Returns the state to save, as plain values.

        Any number of ranks may resume from a state of a single process that was taken between two batches. One inside a
        batch says how the ranks share it. With several workers each has its own count of batches.
        """
        share = self.share
        (batches, inside) = divmod(self.delivered, prepared.local_batch)
        single = share.workers == 1
        return {
            **prepared.state(self.epoch, share.first + batches if single else share.first),
            "workers": share.workers,
            "worker": share.worker,
            "worker_batches": 0 if single else batches,
            "batch_samples": inside,
            **({"batch_split": _describe_split(prepared)} if inside else {}),
        }


class SampleIterator(Iterator[object]):
    """Yields samples one by one. Used by one thread; holds an engine session until the end of the epoch.

    Args:
        prepared: The stream that is read.
        progress: Progress at which the iterator begins; it changes this object with each sample.
        ledger: Records samples that cannot be made.
        note_epoch: Called with the epoch of a state when `load_state_dict` has loaded it.

    Raises:
        ClosedError: by `next`, in a process that was forked from the one that made it.
        StreamerError: by `next`, the error of the engine or of a sample.
        Exception: by `next`, what the transform raises.
    """

    _session: StepSession | None = None  # also where __init__ fails

    def __init__(
        self, prepared: RankStream, progress: IterationProgress, ledger: SkipLedger, note_epoch: Callable[[int], None]
    ) -> None:
        self._pid = os.getpid()
        self._prepared = prepared
        self._maker = prepared.maker()
        self._taker = _TAKERS[prepared.packing.making](self._maker, prepared.packing)
        self._ledger = ledger
        self._note_epoch = note_epoch
        rank = prepared.rank_config
        self._notice = WaitNotice(logger, f"rank {rank.rank}: " if rank.world_size > 1 else "")
        self.progress = progress
        self._begin_share()

    def __repr__(self) -> str:
        return f"SampleIterator({self.progress})"

    def __next__(self) -> object:
        if self._pid != os.getpid():
            raise ClosedError("this iterator belongs to the process that made it; make one after the fork")
        while self._index >= len(self._codes):
            self._next_batch()
        sample = self._taker.take(self, self._index)
        self._index += 1
        self.progress.delivered += 1
        if self._index == len(self._codes):
            # The samples of the batch are in memory of their own, so that its chunks are released.
            self.progress.delivered += self._prepared.local_batch - len(self._codes)
            if self._session is not None:
                self._session.finish(self._step + 1)
            if self._step + 1 == len(self._steps):
                self.close()
        return sample

    def state_dict(self) -> dict[str, object]:
        """Returns the state of this iterator; torchdata's StatefulDataLoader calls it in each worker."""
        return self.progress.state(self._prepared)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continues from a state.

        Raises:
            StateError, ConfigError, ManifestError: the state does not fit, as `RankStream.reenter` and `resume_share`
                say.
        """
        self.close()
        epoch, first = self._prepared.reenter(state)
        self._note_epoch(epoch)
        share, delivered = resume_share(state, self.progress.share, (epoch, first), self._prepared)
        self.progress.epoch = epoch
        self.progress.share = share
        self.progress.delivered = delivered
        self._begin_share()

    def close(self) -> None:
        """Ends the session; idempotent."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not exiting():  # then the names of the modules may be gone, and the session ends with the process
            self.close()

    def _begin_share(self) -> None:
        """Sets the iterator to the place of `progress`. Asking for the first sample opens the session."""
        epoch = self.progress.epoch
        share = self.progress.share
        first, self._skip = divmod(self.progress.delivered, self._prepared.local_batch)
        self._steps = range(max(0, share.steps(self._prepared.plan(epoch).batches) - first))
        self._rest = Share(share.worker, share.workers, share.first + first * share.workers)
        self._step = -1
        self._codes = np.empty(0, np.int64)
        self._index = 0
        self._session = None

    def _next_batch(self) -> None:
        """Waits for the chunks of the next batch, and begins it. The first call opens the session.

        Raises:
            StopIteration: the share has no further batch in this epoch.
        """
        self._prepared.check_rank()
        if self._step + 1 >= len(self._steps):
            raise StopIteration
        if self._session is None:
            self._session = self._prepared.share_session(self.progress.epoch, self._rest, endless=False)
        self._notice.wait(partial(self._session.wait, self._step + 1), self._describe_wait)
        self._step += 1
        batch = self._rest.batch(self._step)
        self._codes = self._prepared.ordinals(self.progress.epoch, batch)
        self._taker.begin(self, self.progress.epoch, self._codes)
        self._index = self._skip
        self._skip = 0

    def _describe_wait(self) -> str:
        share = self.progress.share
        batch = self._rest.batch(self._step + 1)
        worker = f" in worker {share.worker} of {share.workers}" if share.workers > 1 else ""
        return f"the data of epoch {self.progress.epoch}, batch {batch}{worker}: its chunks come from the store"

    def may_skip(self, error: Exception) -> bool:
        """Returns whether a sample may be skipped for an error."""
        return self._prepared.skip_rules.on_error == "skip" and may_skip(error)

    def skip(self, place: SampleLocation, error: Exception) -> None:
        """Records that a sample is skipped; raises DecodeError if more are skipped than the budget allows."""
        cause = f"{type(error).__name__}: {error}"
        skipped = self._prepared.describe_skip(place.code, cause)
        self._ledger.note([skipped], packed=not self._prepared.packing.replaces)
        self._ledger.check()

    def read_leased(self, read: Callable[[], Found]) -> Found:
        """Returns what `read` returns for the current step; see `step_session.read_leased`."""
        assert self._session is not None, "a batch is read inside a session"
        return read_leased(self._session, self._step, read)


class _Taker(ABC):
    """Makes what an iterator yields of a batch, one by one: samples or rows."""

    @abstractmethod
    def __init__(self, maker: StreamMaker, packing: AnyPacking) -> None:
        """Keeps the maker of the samples, and how documents are packed into rows."""

    @abstractmethod
    def begin(self, iterator: SampleIterator, epoch: int, codes: Integers) -> None:
        """Begins a batch.

        Args:
            iterator: Iterator that reads it.
            epoch: Epoch of the batch.
            codes: Codes of its samples, or of its rows.
        """

    @abstractmethod
    def take(self, iterator: SampleIterator, index: int) -> object:
        """Returns what is at an index of the batch."""


class _SampleTaker(_Taker):
    """Makes the samples of a batch."""

    def __init__(self, maker: StreamMaker, packing: AnyPacking) -> None:
        self._maker = maker
        self._places: Sequence[SampleLocation] = []

    def begin(self, iterator: SampleIterator, epoch: int, codes: Integers) -> None:
        """Begins a batch: locates its samples."""
        self._places = iterator.read_leased(partial(self._maker.places, epoch, codes))

    def take(self, iterator: SampleIterator, index: int) -> object:
        """Returns the sample at an index, or else the next one of the batch that can be made.

        Behind the last sample the search goes on with the first. If several cannot be made, one is recorded.
        """
        first: Exception | None = None
        for place in (*self._places[index:], *self._places[:index]):
            try:
                return iterator.read_leased(partial(self._maker.make, place))
            except Exception as error:
                if not iterator.may_skip(error):
                    raise
                if first is None:
                    iterator.skip(place, error)
                    first = error
        assert first is not None, "a batch has at least one sample"
        first.add_note("and no other sample of its batch can be made")
        raise first


class _RowTaker(_Taker):
    """Makes the rows of a batch from their documents."""

    def __init__(self, maker: StreamMaker, packing: AnyPacking) -> None:
        # Imported here, since datasets without packing do not need it.
        from streamer.batches.rows.bucket import make_assembler

        self._maker = maker
        self._assembler = make_assembler(cast("Packing | Buckets", packing))
        self._epoch = 0
        self._codes: Integers = np.empty(0, np.int64)

    def begin(self, iterator: SampleIterator, epoch: int, codes: Integers) -> None:
        """Begins a batch; documents are located row by row."""
        self._epoch = epoch
        self._codes = codes

    def take(self, iterator: SampleIterator, index: int) -> object:
        """Returns the row at an index; documents that may be skipped leave their places empty."""
        codes, pieces = self._maker.codes.documents(self._epoch, self._codes[index : index + 1])
        places = iterator.read_leased(partial(self._maker.places, self._epoch, codes))
        made: dict[int, Document] = {}
        for at, place in enumerate(places):
            try:
                sample = iterator.read_leased(partial(self._maker.make, place))
                made[at] = self._assembler.document(sample, int(pieces.tokens[at]))
            except Exception as error:
                if not iterator.may_skip(error):
                    raise
                iterator.skip(place, error)
        return self._assembler.rows(*self._assembler.settle(made, pieces))[0]


_TAKERS: dict[str, type[_Taker]] = {"samples": _SampleTaker, "rows": _RowTaker, "buckets": _RowTaker}


def resume_share(
    state: Mapping[str, object], share: Share, at: tuple[int, int], prepared: RankStream, *, anew: bool = False
) -> tuple[Share, int]:
    """Returns where a worker goes on from a state: its share, and the number of samples that it has delivered of it.

    Args:
        state: State of an earlier run, which `prepared` has taken over.
        share: Share of this worker.
        at: Epoch, and number of its batch, at which the rank goes on.
        prepared: The stream that is read.
        anew: Whether the rank begins with a whole batch, because the stream has changed.

    Raises:
        StateError: the state has a value that is no number, it is of several workers, or inside a batch, and of another
            worker or number of workers than this, or its place is in batches of another size, or that other ranks
            share.
    """
    saved = [_count(state, name, default) for name, default in (("worker", 0), ("workers", 1))]
    batches = _count(state, "worker_batches", 0)
    inside = _count(state, "batch_samples", 0)
    if saved != [share.worker, share.workers] and (saved[1] > 1 or inside):
        raise StateError(
            f"the state is of worker {saved[0]} of {saved[1]}, this is worker {share.worker} of {share.workers}: "
            "resume with the same num_workers, or use StreamingDataLoader, which resumes with any number",
            field="workers",
        )
    epoch, first = at
    left = Share(share.worker, share.workers, first)
    if anew or epoch != state["epoch"]:
        return left, 0
    if batches or inside:
        size = state["global_batch"]
        split = _describe_split(prepared)
        # States of earlier versions do not say how ranks share a batch.
        before = state.get("batch_split", split)
        if size != prepared.global_batch or (inside and (before != split or inside >= prepared.local_batch)):
            place = f"{inside} samples inside a batch" if inside else f"{batches} batches"
            raise StateError(
                f"the state was taken after {place} of {size} {before}, and here they are batches of "
                f"{prepared.global_batch} {split}: resume with the batch size and the number of ranks of then, or "
                "save the state between two batches",
                field="global_batch" if size != prepared.global_batch else "batch_split",
            )
    return left, batches * prepared.local_batch + inside


def _describe_split(prepared: RankStream) -> str:
    """Returns words about who takes which samples of a batch: ranks with other words have other ones."""
    world = prepared.rank_config.world_size
    by_caches = " by their caches" if prepared.recipe().runs else ""
    return "samples on 1 rank" if world == 1 else f"samples that {world} ranks share{by_caches}"


def _count(state: Mapping[str, object], name: str, default: int) -> int:
    value = state.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 48:
        raise StateError(f"state: {name}={value!r} is not a number from 0 to 2^48", field=name)
    return value
