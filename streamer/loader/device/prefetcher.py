"""Copies batches to a device in advance, on a separate stream.

Users make a `DevicePrefetcher` over any batches, and a `Normalize`; `loader/epoch.py` has a `Prefetch` in each epoch of
a loader with `device=`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from streamer.batches.checks import at_least, function
from streamer.batches.ring.pinning import Fence
from streamer.decode.images import find_image_field
from streamer.decode.together import check_whole_step
from streamer.errors import ConfigError
from streamer.loader.device.copying import BatchTransform, CudaMover, Mover, map_tensors, mover_for
from streamer.removed import check_arguments


class Normalize:
    """Normalizes uint8 images on the device: (x / 255 - mean) / std per channel, in one multiply-add.

    Args:
        mean, std: Mean and standard deviation of each channel, for values in 0..1.
        dtype: Data type of the result.
        key: Field of a dict batch, or index in a sequence, or None for the batch itself. If the batch has no field
            "image", that key stands for its image of any extension, which is then delivered as "image".
        channels_last: Whether the result has the memory format of that name; NHWC input is permuted to NCHW.
        layout: Layout of the input, "NHWC" or "NCHW".

    Raises:
        ConfigError: an invalid layout, mean or standard deviation.
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
        if isinstance(mean, set | frozenset) or isinstance(std, set | frozenset):
            raise ConfigError(f"mean={mean!r}, std={std!r}: give lists, a set has no order of channels", field="std")
        if len(mean) != len(std) or any(s <= 0 for s in std):
            raise ConfigError(f"mean={mean!r} and std={std!r} must be of one length, std positive", field="std")
        self._scale = [1 / (255 * s) for s in std]
        self._shift = [-m / s for m, s in zip(mean, std, strict=True)]
        self._dtype = dtype
        self._key = key
        self._channels_last = channels_last
        self._layout = layout

    def __call__(self, batch: object) -> object:
        """Returns the batch with its images normalised, as NCHW: a tensor, a new dict, or a list for a sequence.

        Raises:
            ConfigError: a dict has no field `key`, or several images that `key` may mean; or `key` does not fit the
                batch: None needs a tensor, an index a sequence.
        """
        if isinstance(batch, dict) and self._key is not None and (isinstance(self._key, str) or self._key in batch):
            name = self._key
            if isinstance(name, str):
                name = find_image_field(name, batch, "Normalize: the batch")
            return {
                self._key if field == name else field: self._normalise(value) if field == name else value
                for field, value in batch.items()
            }
        if isinstance(batch, torch.Tensor) and self._key is None:
            return self._normalise(batch)
        if isinstance(batch, list | tuple) and isinstance(self._key, int) and -len(batch) <= self._key < len(batch):
            changed = list(batch)
            changed[self._key] = self._normalise(changed[self._key])
            return changed
        raise ConfigError(f"Normalize: {_describe_misfit(self._key, batch)}", field="key")

    def _normalise(self, raw: torch.Tensor) -> torch.Tensor:
        # images: N, C, H, W
        images = raw.permute(0, 3, 1, 2) if self._layout == "NHWC" else raw
        scale, shift = (torch.tensor(v, device=raw.device).view(1, -1, 1, 1) for v in (self._scale, self._shift))
        out = torch.addcmul(shift, images.float(), scale).to(self._dtype)
        return out.contiguous(memory_format=torch.channels_last if self._channels_last else torch.contiguous_format)


__all__ = ["AHEAD", "CudaMover", "DevicePrefetcher", "Normalize", "check_device", "map_tensors"]

# Number of batches that are copied in advance: enough to cover one late batch. Each takes a batch of device memory.
AHEAD = 2


def _describe_misfit(key: str | int | None, batch: object) -> str:
    """Returns why a batch has no images at `key`, and which `key` it needs."""
    if isinstance(batch, dict):
        advice = f"the batch is a dict: key= names the field of its images, of {', '.join(map(str, batch))}"
    elif isinstance(batch, list | tuple):
        advice = f"the batch is a sequence: key= is the index of its images, below {len(batch)}"
    elif isinstance(batch, torch.Tensor):
        advice = "the batch is a tensor, which needs no key="
    else:
        advice = f"the batch is a {type(batch).__name__}, and neither a tensor, a dict nor a sequence"
    return f"key={key!r} fits no images; {advice}"


def check_device_step(step: Callable[[object], object] | None) -> Callable[[object], object] | None:
    """Returns `device_transform`, wrapped so that it is checked if it is a step of a library that moves pixels.

    Raises:
        ConfigError: it is no function.
    """
    return check_whole_step("device_transform", function("device_transform", step))


def check_device(device: str | torch.device | None) -> torch.device | None:
    """Returns the device of a name, "cuda" as the current CUDA device, or None for None.

    Raises:
        ConfigError: torch does not know the name, or it is of a CUDA device and torch finds none.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"device={device!r} is not a device of torch: {error}", field="device") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={str(device)!r}, but torch finds no CUDA device", field="device")
    if str(found) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return found


class DevicePrefetcher:
    """Iterates over batches that are copied to a device in advance.

    Takes any iterable of batches: tensors in mappings, lists, tuples, named tuples; other objects are passed on
    unchanged. On the CPU the same code runs without streams. Each `iter()` is one pass over `batches`.

    Args:
        batches: Source of the batches.
        device: Target of the copies, or None for no copies.
        depth: Number of batches that are copied in advance, besides the one in use.
        transform: Called with each batch on the device, on the separate stream.

    Raises:
        ConfigError: see `check_device`; or `depth` is negative.
    """

    @check_arguments("DevicePrefetcher")
    def __init__(
        self,
        batches: Iterable[object],
        device: str | torch.device | None,
        *,
        depth: int = AHEAD,
        transform: BatchTransform | None = None,
    ) -> None:
        depth = at_least("depth", depth, 0)
        self._batches = batches
        self._device = check_device(device)
        self._depth = depth
        self._transform = transform
        self._mover = mover_for(self._device)

    def __repr__(self) -> str:
        return f"DevicePrefetcher({self._device}, depth={self._depth})"

    def __iter__(self) -> Prefetch:
        return Prefetch(iter(self._batches), self._mover, self._depth, self._transform)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]


class Prefetch:
    """Iterates once over batches that are copied in advance.

    A source is kept until its copy is complete: only then may its slot in the ring be reused.

    Args:
        batches: Source of the batches.
        mover: Mover that copies and transforms the batches.
        ahead: Number of batches that are copied in advance, besides the one in use.
        transform: Called with each batch on the device, or None.
        advance_source: Called when the copy of a batch of `batches` is begun and queued, so that `batches` may go on.
    """

    def __init__(
        self,
        batches: Iterator[object],
        mover: Mover,
        ahead: int,
        transform: BatchTransform | None,
        *,
        advance_source: Callable[[], None] = lambda: None,
    ) -> None:
        self._batches = batches
        self._mover = mover
        self._ahead = ahead
        self._transform = transform
        self._coming: deque[tuple[object, Fence] | BaseException] = deque()
        self._sources: deque[tuple[object, Fence]] = deque()
        self._exhausted = False
        # A batch that is moved and not queued yet, because a Ctrl-C came in between, or None.
        self._moved: tuple[object, Fence] | None = None
        self._advance_source = advance_source

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> object:
        batch = self.peek()
        # There is no call between it and `return`, because a Ctrl-C comes after a call.
        del self._coming[0]
        return batch

    def peek(self) -> object:
        """Returns the next batch, which stays the next one until `advance`. Starts the copies of `ahead` further ones.

        Raises:
            StopIteration: there is none.
            Exception: the error of `batches`, of the copy or of the transform in the place of that batch; the next
                call goes on.
        """
        self._queue_last()
        while len(self._coming) <= self._ahead and not self._exhausted:
            self._release_sources()
            try:
                source = next(self._batches)
                moved, fence = self._mover.move(source, self._transform)
            except StopIteration:
                self._exhausted = True
            except Exception as error:  # noqa: BLE001 - raised when its turn has come
                # It is queued in the place of its batch, since earlier batches come first.
                self._coming.append(error)
                # Generators end after an error; the loader's iterators continue.
            else:
                self._sources.append((source, fence))
                self._moved = moved, fence
                self._queue_last()
        self._release_sources()
        if not self._coming:
            raise StopIteration
        first = self._coming[0]
        if isinstance(first, BaseException):
            self._coming.popleft()
            raise first
        batch, fence = first
        self._mover.order_after(batch, fence)
        return batch

    def advance(self, batch: object) -> None:
        """Goes on to the batch after this one; idempotent."""
        if self._coming:
            first = self._coming[0]
            if not isinstance(first, BaseException) and first[0] is batch:
                del self._coming[0]

    def _queue_last(self) -> None:
        """Queues the batch that was moved last, once even if a Ctrl-C comes in between, and advances the source."""
        if self._moved is not None:
            if not self._coming or self._coming[-1] is not self._moved:
                self._coming.append(self._moved)
            self._advance_source()
            self._moved = None

    def _release_sources(self) -> None:
        while self._sources and self._sources[0][1].is_done():
            self._sources.popleft()

    def __del__(self) -> None:
        for _, fence in self._sources:
            fence.wait()
