"""`streamer.measure`: counts the tokens of every document once, so that rows can be planned before they are read."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamer.decode.transforms import as_transform, takes
from streamer.errors import ConfigError
from streamer.loader import checks
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.dataset import StreamingDataset
from streamer.loader.rank.arguments import Order

logger = logging.getLogger(__name__)

Count = str | Callable[[object], int]

# Samples that one task of a worker counts.
_BATCH = 256


def measure(
    dataset: StreamingDataset, count: Count, *, to: str | os.PathLike[str], num_workers: int = 0
) -> npt.NDArray[np.int32]:
    """Counts the tokens of every sample, and writes the numbers to a file for `Packing(cost=...)`.

    Reads the whole dataset once through the cache, in one process and its workers. With on_error="skip" a sample that
    cannot be made gets -1, and is in no row.

    Args:
        dataset: all samples of it, with the transform that training uses; its `packing` is not looked at.
        count: the name of a field, whose length counts; or a function of what the transform returns.
        to: path of the file, .npy: int32, one number for each sample, by the numbers that `dataset[i]` takes.
        num_workers: as of `StreamingDataLoader`.

    Returns:
        The numbers.

    Raises:
        ConfigError: a selection, whose samples have no numbers in the whole; or no count.
    """
    member = dataset._member
    path = Path(str(checks.path("to", to)))
    if path.suffix != ".npy":
        raise ConfigError(f"to={str(path)!r}: give the path of an .npy file", field="to")
    if member.choices:
        raise ConfigError(
            "measure() counts the samples of a whole dataset: call it before select(); a selection with "
            "packing= uses the same file",
            field="dataset",
        )
    counted = _Counted(member.options.transform, count)
    order = Order(last_batch="short")
    options = replace(member.options, packing=None, transform=counted, rank=0, world_size=1, growing=None, order=order)
    own = StreamingDataset.__new__(StreamingDataset)
    own._start(member.part(None, options))
    try:
        costs = np.full(own.samples, -1, np.int32)
        with StreamingDataLoader(own, _BATCH, num_workers) as loader:
            for number, found in enumerate(loader):
                codes = loader._prepare().ordinals(0, number)
                # Replaced ones are those that could not be made.
                costs[codes[~loader.repeated]] = np.asarray(found)[~loader.repeated]
    finally:
        own.close()
    _write(path, costs)
    logger.info("%s: %d tokens of %d samples", path, int(costs[costs > 0].sum(dtype=np.int64)), len(costs))
    return costs


class _Counted:
    """A transform whose result is counted; sent to workers.

    Args:
        transform: the user's.
        count: field or function.
    """

    def __init__(self, transform: object, count: Count) -> None:
        if not isinstance(count, str) and not callable(count):
            raise ConfigError(f"count={count!r} is neither the name of a field nor a function", field="count")
        self._transform = as_transform(transform)  # type: ignore[arg-type]
        self._arguments = [name for name in ("rng", "out") if takes(self._transform, name)]
        self._count = count

    def __call__(self, sample: dict[str, object], rng: np.random.Generator) -> int:
        made: object = sample
        if self._transform is not None:
            given = {"rng": rng, "out": {}}
            made = self._transform(sample, **{name: given[name] for name in self._arguments})
        tokens = len(made[self._count]) if isinstance(self._count, str) else self._count(made)  # type: ignore[index]
        return checks.at_least("count", tokens, 0)


def _write(path: Path, costs: npt.NDArray[np.int32]) -> None:
    """Writes the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.with_name(f".{path.name}.{secrets.token_hex(4)}.npy")
    try:
        np.save(place, costs)
        os.replace(place, path)
    finally:
        place.unlink(missing_ok=True)
