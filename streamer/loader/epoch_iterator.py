"""The iterator over one epoch that the training loop uses."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from streamer.errors import ClosedError
from streamer.loader.delivery import Delivery
from streamer.loader.device.copying import Mover
from streamer.loader.device.prefetcher import DevicePrefetcher, Prefetch
from streamer.loader.stall.stats import TrainerClock


class EpochOwner(msgspec.Struct, frozen=True):
    """The loader that owns an epoch iterator, as functions.

    Attributes:
        ready: number of finished batches that wait; a ClosedError if the loader is closed.
        next_delivery: the next batch from the supply; blocks. It is the same one until `took`.
        took: goes on to the batch after this one.
        delivered: records that the trainer has the batch.
        finished: records the end of the epoch.
        failed: tells the engine of an error that the trainer gets.
    """

    ready: Callable[[], int]
    next_delivery: Callable[[], Delivery]
    took: Callable[[Delivery], None]
    delivered: Callable[[Delivery], None]
    finished: Callable[[], None]
    failed: Callable[[Exception], None]


class EpochIterator:
    """Yields the batches of one epoch. `close()` of the loader ends it; raises after a later `iter()` of the loader."""

    def __init__(
        self,
        owner: EpochOwner,
        left: int,
        clock: TrainerClock,
        mover: Mover | None,
        transform: Callable[[object], object] | None,
    ) -> None:
        self._owner: EpochOwner | None = owner
        self._left = left
        self._superseded = False
        self._clock = clock
        # A batch that an interrupted call has taken: the next call gives it.
        self._pending: Delivery | None = None
        self._deliveries = _Deliveries(owner, left)
        self._prefetch: Prefetch | None = None
        if mover is not None:
            self._prefetch = iter(
                DevicePrefetcher(self._deliveries, None, transform=_on_content(transform), mover=mover)
            )

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> object:
        owner = self._owner
        if self._superseded:
            raise ClosedError(
                "a later iter() of this StreamingDataLoader has ended this iterator; for two iterators make two "
                "loaders of the dataset"
            )
        if owner is None:
            raise StopIteration
        self._clock.ask(owner.ready())
        delivery = self._pending
        if delivery is None:
            try:
                found = next(self._deliveries) if self._prefetch is None else self._prefetch.first()
            except StopIteration:
                found = None
            except Exception as error:
                owner.failed(error)
                raise
            if found is None:
                self._clock.pause()
                owner.finished()
                self.end()
                raise StopIteration
            assert isinstance(found, Delivery)
            self._pending = delivery = found
        if self._prefetch is None:
            self._deliveries.took()
        else:
            self._prefetch.took(delivery)
        owner.delivered(delivery)
        self._clock.leave(len(delivery.repeated), delivery.nbytes)
        content = delivery.content
        # Without a call between it and `return`: a Ctrl-C comes after a call.
        self._pending = None
        return content

    def __len__(self) -> int:
        return self._left

    def supersede(self) -> None:
        """Ends it because a later iterator continues: its `next` raises, so that missing batches are noticed."""
        self._superseded = self._owner is not None
        self.end()

    def end(self) -> None:
        """Ends the iteration."""
        self._owner = self._pending = self._prefetch = None


class _Deliveries:
    """The batches of the epoch from the supply; continues after the error of a single batch."""

    def __init__(self, owner: EpochOwner, left: int) -> None:
        self._owner = owner
        self._left = left
        # The batch that is not taken yet, and how many are left after it.
        self._untaken: tuple[Delivery, int] | None = None

    def __iter__(self) -> _Deliveries:
        return self

    def __next__(self) -> Delivery:
        if self._left <= 0:
            raise StopIteration
        try:
            delivery = self._owner.next_delivery()
            self._untaken = delivery, self._left - 1
        except Exception:
            self._left -= 1
            raise
        return delivery

    def took(self) -> None:
        """Goes on to the batch after the last one; idempotent."""
        if self._untaken is not None:
            delivery, left = self._untaken
            self._owner.took(delivery)
            self._left = left
            self._untaken = None


def _on_content(transform: Callable[[object], object] | None) -> Callable[[object], object] | None:
    if transform is None:
        return None

    def apply(delivery: object) -> object:
        assert isinstance(delivery, Delivery)
        return delivery.with_content(transform(delivery.content))

    return apply
