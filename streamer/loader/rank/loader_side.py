"""What a loader uses of a dataset and its user does not."""

from __future__ import annotations

from collections.abc import Callable

from streamer.loader.contracts import PreparedStream
from streamer.loader.rank.opening import Opening
from streamer.loader.rank.prepared import Prepared


class DatasetSide:
    """What a `StreamingDataLoader` uses of a dataset; see `LoaderSide`.

    Args:
        opening: the dataset's connection to engine and manifest.

    Attributes:
        edition: how often `refresh` has found something else.
        requested_epoch: what `set_epoch` has named; None: nothing since a loader has taken it.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self.edition = 0
        self.requested_epoch: int | None = None

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transform and decoders: they run in workers."""
        return self._opening.options.transform, self._opening.options.decode

    @property
    def refreshes(self) -> bool:
        """Whether it is listed again before each epoch."""
        return self._opening.options.on_change == "refresh"

    def refresh(self) -> bool:
        """Lists again what exists; see `StreamingDataset.refresh`."""
        changed = self._opening.refresh()
        self.edition += changed
        return changed

    def prepare(self, batch_size: int, drop_last: bool = False) -> Prepared:
        """Does the I/O: finds the manifest, fixes the order for this batch size. Of this rank alone.

        Args:
            batch_size: samples of a batch on this rank.
            drop_last: leave out the last, incomplete batch.

        Raises:
            StreamerError: no engine, manifest or order.
        """
        return self._opening.prepare(batch_size, drop_last)

    @property
    def compares(self) -> bool:
        """Whether torch.distributed knows other ranks of this dataset, for `compare`."""
        return self._opening.compares

    def compare(self, prepare: Callable[[], PreparedStream], place: str) -> None:
        """Prepares on all ranks together. Collective.

        Args:
            prepare: what this rank does; its error is raised on every rank.
            place: where this rank begins; equal on all.

        Raises:
            StreamerError: of the first rank that failed, on every rank.
            StateError: the ranks disagree.
        """
        self._opening.compared(prepare, place)

    def take_requested_epoch(self) -> int | None:
        """The epoch that `set_epoch` has named since the last call."""
        requested, self.requested_epoch = self.requested_epoch, None
        return requested
