"""Batches to the device, ahead of their use, on a stream of their own; and what is done with them there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch

from streamer.errors import ConfigError
from streamer.loader.delivery import Delivery

# Enough to cover one late batch; each costs a batch of device memory.
AHEAD = 2

BatchTransform = Callable[[object], object]


def check_device(device: str | torch.device | None) -> torch.device | None:
    """The device of that name.

    Raises:
        ConfigError: no such device here.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device={device!r} is not a device of torch: {error}", field="device") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={str(device)!r}, but torch finds no CUDA device", field="device")
    if str(found) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return found


class Marker(Protocol):
    """A point in the work of a device."""

    def done(self) -> bool:
        """Whether the device has come past it."""
        ...

    def wait(self) -> None:
        """Blocks until it has."""
        ...


class Mover(Protocol):
    """How tensors get to a device."""

    def move(self, source: object, transform: BatchTransform | None) -> tuple[object, Marker]:
        """Starts the copies, and the transform after them; the source must live until the marker is done."""
        ...

    def hand_over(self, batch: object, marker: Marker) -> None:
        """The consumer uses the batch from now on; its work comes after the marker."""
        ...


class _Done:
    """Nothing to wait for."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return


class PlainMover:
    """Devices without streams: copies happen at once; on the CPU the batch stays where it is.

    Args:
        device: None: no copy, only the transform.
    """

    def __init__(self, device: torch.device | None) -> None:
        self._device = device

    def move(self, batch: object, transform: BatchTransform | None) -> tuple[object, Marker]:
        """See `Mover`."""
        device = self._device
        moved = batch if device is None else map_tensors(batch, lambda tensor: tensor.to(device))
        return (transform(moved) if transform else moved), _Done()

    def hand_over(self, batch: object, marker: Marker) -> None:
        """See `Mover`."""


class _EventMarker:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()


class CudaMover:
    """One side stream for the prefetcher's life.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def move(self, batch: object, transform: BatchTransform | None) -> tuple[object, Marker]:
        """See `Mover`."""
        with torch.cuda.stream(self._stream):
            moved = map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
            if transform is not None:
                moved = transform(moved)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return moved, _EventMarker(event)

    def hand_over(self, batch: object, marker: Marker) -> None:
        """See `Mover`."""
        assert isinstance(marker, _EventMarker)
        current = torch.cuda.current_stream(self._device)
        current.wait_event(marker.event)
        # The memory belongs to the side stream: it must not be given out again before the consumer's work is done.
        map_tensors(batch, lambda tensor: _record(tensor, current))


def _record(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    tensor.record_stream(stream)
    return tensor


def mover_for(device: torch.device | None) -> Mover:
    """The way to a device."""
    return CudaMover(device) if device is not None and device.type == "cuda" else PlainMover(device)


class DevicePrefetcher:
    """Keeps the next batches on the device.

    Takes any iterable of batches: tensors in mappings, sequences, named tuples; other objects are handed on as they
    are. On the CPU the same code runs without streams. Each `iter()` is one pass over `batches`.

    Args:
        batches: where they come from.
        device: where they are wanted.
        ahead: batches on their way or there, besides the one in use.
        transform: called with each batch on the device, on the side stream.
        mover: another way to a device (tests).

    Raises:
        ConfigError: no such device.
    """

    def __init__(
        self,
        batches: Iterable[object],
        device: str | torch.device | None,
        *,
        ahead: int = AHEAD,
        transform: BatchTransform | None = None,
        mover: Mover | None = None,
    ) -> None:
        if ahead < 0:
            raise ConfigError(f"ahead={ahead} is negative", field="ahead")
        self._batches = batches
        self._device = check_device(device)
        self._ahead = ahead
        self._transform = transform
        self._mover = mover or mover_for(self._device)

    def __repr__(self) -> str:
        return f"DevicePrefetcher({self._device}, ahead={self._ahead})"

    def __iter__(self) -> Iterator[object]:
        return _Prefetch(iter(self._batches), self._mover, self._ahead, self._transform)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]


class _Prefetch:
    """One pass. A source is kept until its copy is over: only then may its slot be used again."""

    def __init__(self, batches: Iterator[object], mover: Mover, ahead: int, transform: BatchTransform | None) -> None:
        self._batches = batches
        self._mover = mover
        self._ahead = ahead
        self._transform = transform
        self._coming: deque[tuple[object, Marker] | BaseException] = deque()
        self._sources: deque[tuple[object, Marker]] = deque()
        self._over = False

    def __iter__(self) -> _Prefetch:
        return self

    def __next__(self) -> object:
        while len(self._coming) <= self._ahead and not self._over:
            self._fetch()
        self._let_go()
        if not self._coming:
            raise StopIteration
        first = self._coming.popleft()
        if isinstance(first, BaseException):
            raise first
        batch, marker = first
        self._mover.hand_over(batch, marker)
        return batch

    def _fetch(self) -> None:
        """Begins the next copy. An error takes its batch's place in the row: those before it come first."""
        self._let_go()
        try:
            source = next(self._batches)
            moved, marker = self._mover.move(source, self._transform)
        except StopIteration:
            self._over = True
        except Exception as error:  # noqa: BLE001 - raised when its turn has come
            self._coming.append(error)
            # Iterators made by generators are over after an error; ours go on.
        else:
            self._coming.append((moved, marker))
            self._sources.append((source, marker))

    def _let_go(self) -> None:
        while self._sources and self._sources[0][1].done():
            self._sources.popleft()

    def __del__(self) -> None:
        for _, marker in self._sources:
            marker.wait()


def map_tensors(batch: object, change: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """The same structure with every tensor changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Delivery):
        return batch.with_content(map_tensors(batch.content, change))
    if isinstance(batch, Mapping):
        return _like(batch, {key: map_tensors(value, change) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        kind: Callable[..., object] = type(batch)
        return kind(*(map_tensors(value, change) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)([map_tensors(value, change) for value in batch])
    return batch


def _like(batch: Mapping[object, object], changed: dict[object, object]) -> object:
    if type(batch) is dict:
        return changed
    kind: Callable[..., object] = type(batch)
    try:
        return kind(changed)
    except TypeError:
        return changed


class Normalize:
    """uint8 images to normalised floats, on the device: (x / 255 - mean) / std per channel, in one multiply-add.

    Args:
        mean, std: per channel, for values in 0..1.
        dtype: of the result.
        key: the field of a dict batch, or the place in a sequence; None: the batch itself.
        channels_last: memory format of the result; NHWC input is permuted to NCHW.
        layout: of the input, "NHWC" or "NCHW".
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        dtype: torch.dtype = torch.float32,
        key: str | int | None = None,
        channels_last: bool = False,
        layout: str = "NHWC",
    ) -> None:
        if layout not in {"NHWC", "NCHW"}:
            raise ConfigError(f"layout={layout!r} is neither 'NHWC' nor 'NCHW'", field="layout")
        if len(mean) != len(std) or any(s <= 0 for s in std):
            raise ConfigError(f"mean={mean!r} and std={std!r} must be of one length, std positive", field="std")
        self._scale = [1 / (255 * s) for s in std]
        self._shift = [-m / s for m, s in zip(mean, std, strict=True)]
        self._dtype = dtype
        self._key = key
        self._channels_last = channels_last
        self._layout = layout

    def __call__(self, batch: object) -> object:
        """Returns the batch with its images normalised."""
        if self._key is None:
            assert isinstance(batch, torch.Tensor)
            return self._normalise(batch)
        changed = batch.copy() if isinstance(batch, dict) else list(batch)  # type: ignore[call-overload]
        changed[self._key] = self._normalise(changed[self._key])
        return changed

    def _normalise(self, raw: torch.Tensor) -> torch.Tensor:
        # images: N, C, H, W
        images = raw.permute(0, 3, 1, 2) if self._layout == "NHWC" else raw
        scale, shift = (torch.tensor(v, device=raw.device).view(1, -1, 1, 1) for v in (self._scale, self._shift))
        out = torch.addcmul(shift, images.float(), scale).to(self._dtype)
        return out.contiguous(memory_format=torch.channels_last if self._channels_last else torch.contiguous_format)
