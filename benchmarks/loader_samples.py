"""What the loader's benchmark hands over. Free of torch, as are most users' samples; so their workers are, too."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

Make = Callable[[int, int], object]


class Ready:
    """Samples that cost nothing to produce: what remains is the handoff."""

    def __init__(self, samples: list[object]) -> None:
        self.samples = samples

    def __call__(self, epoch: int, ordinal: int) -> object:
        return self.samples[ordinal % len(self.samples)]


def constant(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 100, shape).astype(dtype)


# name -> how a sample is made, samples a batch
KINDS: dict[str, tuple[Make, int]] = {
    "image": (Ready([{"x": constant((224, 224, 3), "u1"), "y": 5}]), 256),
    "float": (Ready([{"x": constant((1000, 150), "f8"), "y": 5}]), 128),
    "tokens": (Ready([{"x": constant((2048,), "i8")}]), 64),
    "raw": (Ready([{"jpg": os.urandom(110_000), "__key__": f"{n:08}", "cls": 5} for n in range(256)]), 256),
}
