"""The interface of a dataset for loaders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from streamer.loader.contracts import PreparedStream
from streamer.order.plan import LastBatch

Stream_co = TypeVar("Stream_co", bound=PreparedStream, covariant=True)


class Openable(Protocol[Stream_co]):
    """The opening of a dataset or of a mix."""

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transforms and decoders: they run in workers."""
        ...

    @property
    def refreshes(self) -> bool:
        """Whether objects are listed again before each epoch."""
        ...

    @property
    def compares(self) -> bool:
        """Whether torch.distributed knows other ranks."""
        ...

    def prepare(self, batch_size: int, last_batch: LastBatch | None) -> Stream_co:
        """Fixes the order for batches of `batch_size` samples on each rank."""
        ...

    def compared(self, prepare: Callable[[], PreparedStream], place: str) -> PreparedStream:
        """Prepares on all ranks together. Collective."""
        ...

    def share(self, stream: PreparedStream) -> None:
        """Makes the engines of all ranks share their caches, if the dataset says so. Collective."""
        ...

    def refresh(self) -> bool:
        """Lists the objects again. Collective."""
        ...


class DatasetSide(Generic[Stream_co]):
    """The interface of a dataset or a mix for `StreamingDataLoader`; see `LoaderSide`.

    Args:
        opening: its connection to engine and manifest.

    Attributes:
        edition: number of changes that `refresh` has found.
        requested_epoch: the last `set_epoch`; None: none since a loader has taken it.
    """

    def __init__(self, opening: Openable[Stream_co]) -> None:
        self._opening = opening
        self.edition = 0
        self.requested_epoch: int | None = None

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transforms and decoders: they run in workers."""
        return self._opening.user_code

    @property
    def refreshes(self) -> bool:
        """Whether the objects are listed again before each epoch."""
        return self._opening.refreshes

    def refresh(self) -> bool:
        """Lists the objects again; see `StreamingDataset.refresh`."""
        changed = self._opening.refresh()
        self.edition += changed
        return changed

    def prepare(self, batch_size: int, last_batch: LastBatch | None = None) -> Stream_co:
        """Does the I/O of this rank only: finds the manifest, fixes the order for this batch size.

        Args:
            batch_size: samples of a batch on this rank.
            last_batch: what becomes of an incomplete last batch; None: short on one rank, filled on several.

        Raises:
            StreamerError: no engine, manifest or order.
        """
        return self._opening.prepare(batch_size, last_batch)

    @property
    def compares(self) -> bool:
        """Whether torch.distributed knows other ranks of this dataset, for `compare`."""
        return self._opening.compares

    def compare(self, prepare: Callable[[], PreparedStream], place: str) -> None:
        """Prepares on all ranks together. Collective.

        Args:
            prepare: the preparation of this rank; its error is raised on every rank.
            place: epoch and batch of the start; equal on all ranks.

        Raises:
            StreamerError: of the first rank that failed, on every rank.
            StateError: the ranks disagree.
        """
        self._opening.share(self._opening.compared(prepare, place))

    def take_requested_epoch(self) -> int | None:
        """The epoch given to `set_epoch` since the last call, if any."""
        requested, self.requested_epoch = self.requested_epoch, None
        return requested
