"""Gives datasets and mixes what they have in common: epochs, a state, and iteration in one process.

`EpochDataset` is the base class of `StreamingDataset` and `MixedDataset`. `dataloader.py` takes from it what it reads
(`find_opening`).
"""

from __future__ import annotations

import reprlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from streamer.base.system_limits import name_limits
from streamer.batches import checks
from streamer.batches.skipping import SkipLedger, Skipped
from streamer.errors import ConfigError
from streamer.loader.epoch_cell import WorkerTicket
from streamer.loader.kinds.step_session import Share
from streamer.loader.rank.opening import StreamOpening
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.rank.sample_iterator import IterationProgress, SampleIterator, resume_share


class EpochDataset(IterableDataset[object]):
    """Iterates over the samples of a stream, which a `StreamOpening` prepares: in epochs, with a state."""

    _opening: StreamOpening
    _resume: dict[str, object] | None
    _progress: IterationProgress | None
    # The edition of the data, and the stream that was prepared from it.
    _prepared: tuple[int, RankStream] | None
    # The seed that torch gave the workers of the last iterator, and how many earlier iterators had the same one.
    _rounds: tuple[int, int]

    # ------------------------------------------------------------ epochs and state

    def __len__(self) -> int:
        """Returns the number of samples of this rank in the next epoch, over all its workers.

        Repeats that fill the last batch count. The first use opens the data, and may raise a StreamerError.
        """
        return self._prepare_plain().rank_samples(self.epoch)

    @property
    def epoch(self) -> int:
        """The epoch of the next `iter()`, in any process."""
        return self._epochs.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes the next `iter()` epoch `epoch`, also in persistent workers and in a StreamingDataLoader.

        A state that was loaded into this dataset is forgotten.

        Raises:
            ConfigError: it is not a whole number from 0 to 2^32 - 1.
        """
        epoch = checks.epoch(epoch)
        self._epochs.set(epoch)
        self._opening.requested_epoch = epoch
        self._resume = None

    def repeated(self, step: int) -> npt.NDArray[np.bool_]:
        """Returns which samples of a batch are repeats that only fill it: bool (samples,). For plain DataLoaders.

        The batch is one of the epoch that began last. Samples that replace skipped ones are not marked. A
        `StreamingDataLoader` has a `repeated` of its own.

        Args:
            step: Number of the batch, counted from the start of the epoch.

        Raises:
            ConfigError: the dataset was not given `batch_size`.
            IndexError: the epoch has no such batch.
        """
        if self._opening.options.batch_size is None:
            message = "repeated(step) needs the batches: give the dataset the batch_size of the DataLoader"
            raise ConfigError(message, field="batch_size")
        return self._prepare_plain().plan(max(0, self.epoch - 1)).find_repeats(step)

    def state_dict(self) -> dict[str, object]:
        """Returns the position of the last `iter()` of this process, or the start of the next one.

        With worker processes the main process does not know it: use StreamingDataLoader or StatefulDataLoader.
        """
        if self._resume is not None:
            return dict(self._resume)
        progress = IterationProgress(self.epoch, Share()) if self._progress is None else self._progress
        return progress.state(self._prepare_plain())

    def load_state_dict(self, state: Mapping[str, object], strict: bool = True) -> None:
        """Makes the next `iter()` continue from a state, which is checked then.

        Args:
            state: State of an earlier run.
            strict: Whether the order must be the same. With False, for a mix, its members, weights or batching may
                have changed. Members that it had then continue where they were; inside an epoch, the next one begins.
                Samples of a batch that was begun come again.

        Raises:
            StateError: it is not a dict, or holds the state of an object of the trainer.
        """
        checks.check_state(state)
        self._resume = dict(state)
        self._resume_strict = strict

    # ------------------------------------------------------------ reading

    @name_limits()
    def __iter__(self) -> SampleIterator:
        """Yields the samples of this process's share of the next epoch.

        Raises:
            StreamerError: engine, manifest or a loaded state do not match; on every rank if torch.distributed is
                initialised.
        """
        worker = get_worker_info()
        if worker is None and self._resume is None and self._opening.refreshes:
            self.refresh()
        state = self._resume

        def prepare() -> RankStream:
            return self._opening.keep_rank(self._prepare_plain())

        if worker is None:
            place = "" if state is None else f"epoch {state.get('epoch')}, position {state.get('position')}"
            prepared = self._opening.prepare_together(prepare, place)
            share = Share()
        else:
            prepared = prepare()
            share = Share(worker.id, worker.num_workers)
        if state is not None:
            self._resume = None
            anew = not self._resume_strict
            at = prepared.adopt(state) if anew else prepared.resume(state)
            self._set_next_epoch(epoch := at[0])
            share, delivered = resume_share(state, share, at, prepared, anew=anew)
            self._progress = IterationProgress(epoch, share, delivered)
        elif worker is None:
            self._progress = IterationProgress(self._epochs.begin(), share)
        else:
            # torch gives the workers of one iterator consecutive seeds.
            base_seed = worker.seed - worker.id
            count = self._rounds[1] + 1 if self._rounds[0] == base_seed else 0
            self._rounds = (base_seed, count)
            ticket = WorkerTicket(base_seed, count, worker.id)
            self._progress = IterationProgress(self._epochs.begin(ticket), share)
        return SampleIterator(prepared, self._progress, self._ledger, self._set_next_epoch)

    @property
    def skipped(self) -> list[Skipped]:
        """Samples that `iter(dataset)` has skipped in this process, with causes (`on_error="skip"`)."""
        return list(self._ledger.entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes this process's connections to the engine. The next use opens one again. Idempotent.

        Close its loaders and iterators first. One that still reads gets a ClosedError after the batches that are
        already made; its next `iter()` connects again.
        """
        self._opening.close()

    # ------------------------------------------------------------ inside

    def _begin_at_zero(self, opening: StreamOpening) -> None:
        """Sets the state of an object that has iterated over nothing yet."""
        self._opening = opening
        self._prepared = None
        self._epochs = opening.shared
        self._ledger = SkipLedger(opening.options.skip_rules.budget)
        self._resume = None
        self._resume_strict = True
        self._progress = None
        self._rounds = (0, -1)

    @abstractmethod
    def refresh(self) -> bool:
        """Lists the objects again; returns True if they have changed, so that the next epoch uses them. Collective."""

    def _prepare_plain(self) -> RankStream:
        """Returns the stream for a bare loop or a plain DataLoader, in batches of `batch_size`, or else of one sample.

        It is kept until the data or the rank changes.
        """
        edition = self._opening.edition
        rank_config = self._opening.rank_config()
        before = self._prepared
        if before is None or before[0] != edition or before[1].rank_config != rank_config:
            options = self._opening.options
            last_batch = options.order.last_batch
            self._prepared = edition, self._opening.prepare(options.batch_size or 1, last_batch, plain=True)
        assert self._prepared is not None
        return self._prepared[1]

    def _get_opening(self) -> StreamOpening:
        return self._opening

    def _set_next_epoch(self, epoch: int) -> None:
        self._epochs.set(epoch + 1)


def find_opening(dataset: EpochDataset) -> StreamOpening:
    """Returns the opening of a dataset, by which a loader prepares its streams.

    Raises:
        ConfigError: it is not a dataset of streamer.
    """
    if not hasattr(dataset, "_get_opening"):
        if hasattr(dataset, "indices"):  # of torch's Subset, and of its random_split
            advice = "select a part of one with dataset.select(indices=subset.indices), or fraction=(0, 0.9)"
        else:
            advice = "pass StreamingDataset(url)"
        message = f"dataset={reprlib.repr(dataset)} is not a StreamingDataset: {advice}"
        raise ConfigError(message, field="dataset")
    return dataset._get_opening()
