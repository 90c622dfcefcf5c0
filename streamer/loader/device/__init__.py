"""Copies batches to the GPU, and transforms them there."""

from streamer.loader.device.prefetcher import DevicePrefetcher, Normalize

__all__ = ["DevicePrefetcher", "Normalize"]
