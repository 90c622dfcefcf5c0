"""One pass over an epoch, as the training loop has it in hands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from streamer.errors import ClosedError
from streamer.loader.delivery import Delivery
from streamer.loader.device.copying import Mover
from streamer.loader.device.prefetcher import DevicePrefetcher
from streamer.loader.stall.stats import TrainerClock


class EpochOwner(Protocol):
    """The loader, as its running epoch sees it."""

    def next_delivery(self) -> Delivery:
        """The next batch from the supply; blocks."""
        ...

    def delivered(self, delivery: Delivery) -> None:
        """The trainer has it."""
        ...

    def finished(self) -> None:
        """The epoch is over."""
        ...

    def ready(self) -> int:
        """Finished batches that wait.

        Raises:
            ClosedError: the loader is closed.
        """
        ...


class EpochIterator:
    """Hands out the batches of one epoch; `close()` of the loader ends it, a later `iter()` is an error for it.

    Args:
        owner: the loader.
        left: batches to come.
        clock: of the trainer.
        mover: brings them to where they are wanted; None: they stay where they are.
        transform: called with each batch on the device.
    """

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
        self._batches: Iterator[object] = _Deliveries(owner, left)
        if mover is not None:
            self._batches = iter(DevicePrefetcher(self._batches, None, transform=_on_content(transform), mover=mover))

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> object:
        owner = self._owner
        if self._superseded:
            raise ClosedError(
                "a later iter() of this StreamingDataLoader has ended this iterator; for two at once make two loaders "
                "of the data set"
            )
        if owner is None:
            raise StopIteration
        self._clock.ask(owner.ready())
        delivery = next(self._batches, None)
        if delivery is None:
            self._clock.pause()
            owner.finished()
            self.end()
            raise StopIteration
        assert isinstance(delivery, Delivery)
        owner.delivered(delivery)
        self._clock.leave(len(delivery.repeated), delivery.nbytes)
        return delivery.content

    def __len__(self) -> int:
        return self._left

    def supersede(self) -> None:
        """Another one goes on: batches that this one would not give any more must not go missing unnoticed."""
        self._superseded = self._owner is not None
        self.end()

    def end(self) -> None:
        """Stops it."""
        self._owner = None
        self._batches = iter(())


class _Deliveries:
    """The batches of the epoch as the supply gives them; survives the error of a single batch."""

    def __init__(self, owner: EpochOwner, left: int) -> None:
        self._owner = owner
        self._left = left

    def __iter__(self) -> _Deliveries:
        return self

    def __next__(self) -> Delivery:
        if self._left <= 0:
            raise StopIteration
        self._left -= 1
        return self._owner.next_delivery()


def _on_content(transform: Callable[[object], object] | None) -> Callable[[object], object] | None:
    if transform is None:
        return None

    def apply(delivery: object) -> object:
        assert isinstance(delivery, Delivery)
        return delivery.with_content(transform(delivery.content))

    return apply
