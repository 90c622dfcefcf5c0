"""Copies batches to a device, and transforms them there.

`loader/epoch.py` uses it for a loader with `device=`. Users take `DevicePrefetcher` and `Normalize` from
it, and `DaliSource` from `dali.py`.
"""

from streamer.loader.device.prefetcher import DevicePrefetcher, Normalize

__all__ = ["DevicePrefetcher", "Normalize"]
