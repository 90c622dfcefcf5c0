"""Batches to the GPU: the prefetcher, and what runs there."""

from streamer.loader.device.normalize import Normalize
from streamer.loader.device.prefetcher import DevicePrefetcher

__all__ = ["DevicePrefetcher", "Normalize"]
