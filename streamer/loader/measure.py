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
_BATCH = 1024


def measure(
    dataset: StreamingDataset, count: Count, *, to: str | os.PathLike[str], num_workers: int = 0
) -> npt.NDArray[np.int32]:
    """Counts the tokens of every sample, and writes the numbers to a file for `Packing(cost=...)`.

    Reads the whole dataset once through the cache, in one process and its workers. With on_error="skip" a sample that
    cannot be made gets -1, and is in no row.

    Args:
        dataset: all samples of it, with the transform that training uses; `packing` and `balance` are not looked at.
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
    options = replace(
        member.options,
        transform=_counted(member.options.transform, count),
        packing=None,
        balance=None,
        growing=None,
        order=Order(last_batch="short"),
        rank=0,
        world_size=1,
    )
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


def _counted(transform: object, count: Count) -> Callable[..., int]:
    """Returns a transform whose result is the number of tokens; with `rng` if the user's takes it, which costs time."""
    if not isinstance(count, str) and not callable(count):
        raise ConfigError(f"count={count!r} is neither the name of a field nor a function", field="count")
    own = as_transform(transform)  # type: ignore[arg-type]
    given: dict[str, object] = {"out": {}} if takes(own, "out") else {}

    def tokens(sample: dict[str, object], **more: object) -> int:
        made: object = sample if own is None else own(sample, **given, **more)
        found = len(made[count]) if isinstance(count, str) else count(made)  # type: ignore[index]
        return checks.at_least("count", found, 0)

    def drawing(sample: dict[str, object], rng: np.random.Generator) -> int:
        return tokens(sample, rng=rng)

    return drawing if takes(own, "rng") else tokens


def _write(path: Path, costs: npt.NDArray[np.int32]) -> None:
    """Writes the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.with_name(f".{path.name}.{secrets.token_hex(4)}.npy")
    try:
        np.save(place, costs)
        os.replace(place, path)
    finally:
        place.unlink(missing_ok=True)
