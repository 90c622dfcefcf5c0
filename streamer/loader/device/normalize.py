"""Normalizes images on the device, after the copy: they are copied as bytes, a quarter of the floats."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from streamer.decode.images import find_image_field
from streamer.errors import ConfigError


class Normalize:
    """Normalizes uint8 images on the device: (x / 255 - mean) / std per channel, in one multiply-add.

    Args:
        mean, std: Mean and standard deviation of each channel, for values in 0..1.
        dtype: Data type of the result.
        key: Field of a dict batch, or index in a sequence, or None for the batch itself. "image", where the batch has
            no such field: its image, whatever the extension; it is delivered as "image".
        channels_last: Whether the result has the memory format of that name; NHWC input is permuted to NCHW.
        layout: Layout of the input, "NHWC" or "NCHW".
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
        if isinstance(batch, dict):
            name = self._key
            if isinstance(name, str):
                name = find_image_field(name, batch, "Normalize: the batch")
            return {
                self._key if field == name else field: self._normalise(value) if field == name else value
                for field, value in batch.items()
            }
        changed = list(batch)  # type: ignore[call-overload]
        changed[self._key] = self._normalise(changed[self._key])
        return changed

    def _normalise(self, raw: torch.Tensor) -> torch.Tensor:
        # images: N, C, H, W
        images = raw.permute(0, 3, 1, 2) if self._layout == "NHWC" else raw
        scale, shift = (torch.tensor(v, device=raw.device).view(1, -1, 1, 1) for v in (self._scale, self._shift))
        out = torch.addcmul(shift, images.float(), scale).to(self._dtype)
        return out.contiguous(memory_format=torch.channels_last if self._channels_last else torch.contiguous_format)
