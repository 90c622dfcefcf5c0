"""The interface of a mix for loaders."""

from __future__ import annotations

from collections.abc import Callable

from streamer.loader.contracts import PreparedStream
from streamer.loader.mix.opening import MixOpening
from streamer.loader.mix.prepared import MixPrepared
from streamer.order.plan import LastBatch


class MixSide:
    """The interface of a mix for `StreamingDataLoader`; see `LoaderSide`.

    Args:
        opening: the members' connection to engine and manifests.

    Attributes:
        edition: number of changes that `refresh` has found.
        requested_epoch: the last `set_epoch`; None: none since a loader has taken it.
    """

    def __init__(self, opening: MixOpening) -> None:
        self._opening = opening
        self.edition = 0
        self.requested_epoch: int | None = None

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transforms and decoders of all members: they run in workers."""
        options = [opening.options for opening in self._opening.openings]
        return tuple(code for each in options for code in (each.transform, each.decode))

    @property
    def refreshes(self) -> bool:
        """Whether the objects of a member are listed again before each epoch."""
        return any(opening.options.on_change == "refresh" for opening in self._opening.openings)

    def refresh(self) -> bool:
        """Lists the objects again; see `MixedDataset.refresh`."""
        changed = self._opening.refresh()
        self.edition += changed
        return changed

    def prepare(self, batch_size: int, last_batch: LastBatch | None = None) -> MixPrepared:
        """Does the I/O of this rank only: opens the members, fixes the order for this batch size."""
        return self._opening.prepare(batch_size, last_batch)

    @property
    def compares(self) -> bool:
        """Whether torch.distributed knows other ranks of this mix, for `compare`."""
        return self._opening.compares

    def compare(self, prepare: Callable[[], PreparedStream], place: str) -> None:
        """Prepares on all ranks together. Collective."""
        self._opening.compared(prepare, place)

    def take_requested_epoch(self) -> int | None:
        """The epoch given to `set_epoch` since the last call, if any."""
        requested, self.requested_epoch = self.requested_epoch, None
        return requested
