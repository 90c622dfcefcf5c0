"""For tests of code that uses streamer: a dataset without engine and files, and a look inside a loader.

Nothing in the product imports this package.
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
