"""Copies batches to the GPU, and transforms them there."""

from streamer.loader.device.normalize import Normalize
from streamer.loader.device.prefetcher import DevicePrefetcher

__all__ = ["DevicePrefetcher", "Normalize"]
