"""Support for tests of code that uses streamer.

A dataset without engine and files, the internal state of a loader, and a simulation of the cache. The product does not
import this package.
"""

from streamer.testing.fake_dataset import FakeDataset, FakePrepared, FakeRecipe, FakeSource
from streamer.testing.inspection import Inspection, copy_with, inspect, poison_freed_slots

__all__ = [
    "FakeDataset",
    "FakePrepared",
    "FakeRecipe",
    "FakeSource",
    "Inspection",
    "copy_with",
    "inspect",
    "poison_freed_slots",
]
