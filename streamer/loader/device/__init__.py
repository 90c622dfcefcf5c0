"""Copies batches to a device, and transforms them there.

`loader/epoch.py` uses it for a loader with `device=`; users take `DevicePrefetcher`, `Normalize` and `dali.py` from it.
"""

from streamer.loader.device.prefetcher import DevicePrefetcher, Normalize

__all__ = ["DevicePrefetcher", "Normalize"]
