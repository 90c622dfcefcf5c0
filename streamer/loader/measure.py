"""`streamer.measure`: counts the tokens of every document once, so that rows can be planned before they are read."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamer.decode.transforms import as_transform, takes
from streamer.errors import ConfigError
from streamer.loader import checks
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.dataset import StreamingDataset
from streamer.loader.rank.arguments import Order
from streamer.loader.samples.seeding import UNSEEDED
from streamer.manifest.selection import Where
from streamer.manifest.table import Manifest

logger = logging.getLogger(__name__)

Count = str | Callable[[object], int]

# Samples that one task of a worker counts.
_BATCH = 1024


def measure(
    dataset: StreamingDataset,
    count: Count,
    *,
    to: str | os.PathLike[str],
    num_workers: int = 0,
    known: str | os.PathLike[str] | None = None,
) -> npt.NDArray[np.int32]:
    """Counts the tokens of every sample, and writes the numbers to a file for `Packing(cost=...)`.

    Reads the whole dataset once through the cache, in one process and its workers. With on_error="skip" a sample that
    cannot be made gets -1, and is in no row. The global random generators are not seeded for the transform: a length
    must not depend on them.

    Args:
        dataset: all samples of it, with the transform that training uses; `packing` and `balance` are not looked at.
        count: the name of a field, whose length counts; or a function of what the transform returns.
        to: path of the file, .npy: int32, one number for each sample, by the numbers that `dataset[i]` takes.
        num_workers: as of `StreamingDataLoader`.
        known: `to` of an earlier call with the same count and transform, which may be the same path: only chunks of
            samples that it does not have are read. Keeps `PATH.chunks.npy` beside it.

    Returns:
        The numbers.

    Raises:
        ConfigError: a selection, whose samples have no numbers in the whole; no count; or `known` was not written here.
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
    whole = member.part(None, options)
    costs, manifest = np.full(whole.samples, -1, np.int32), whole.manifest
    missing = None if known is None else (np.flatnonzero(~_fill_in(costs, manifest, str(known))), Where())
    own._start(whole.part(missing, options))
    try:
        if missing is None or len(missing[0]):
            _count_all(own, num_workers, costs)
    finally:
        own.close()
    _write(path, costs)
    _write(_chunks_of(path), _facts(manifest))
    logger.info("%s: %d tokens of %d samples", path, int(costs[costs > 0].sum(dtype=np.int64)), len(costs))
    return costs


def _count_all(dataset: StreamingDataset, num_workers: int, costs: npt.NDArray[np.int32]) -> None:
    """Sets the numbers of a dataset's samples."""
    with StreamingDataLoader(dataset, _BATCH, num_workers) as loader:
        for number, found in enumerate(loader):
            codes = loader._prepare().ordinals(0, number)
            # Replaced ones are those that could not be made.
            costs[codes[~loader.repeated]] = np.asarray(found)[~loader.repeated]


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

    found = drawing if takes(own, "rng") else tokens
    setattr(found, UNSEEDED, True)
    return found


def _chunks_of(path: Path) -> Path:
    """The file that says which chunks the numbers of another one are of."""
    return path.with_name(f"{path.name}.chunks.npy")


def _facts(manifest: Manifest) -> npt.NDArray[np.void]:
    """Returns the key of each chunk, and its number of samples."""
    facts = np.empty(manifest.chunks, [("key", "V16"), ("samples", np.int64)])
    facts["key"] = np.ascontiguousarray(manifest.chunk_keys).view("V16").reshape(-1)
    facts["samples"] = manifest.chunk_samples
    return facts


def _fill_in(costs: npt.NDArray[np.int32], manifest: Manifest, known: str) -> npt.NDArray[np.bool_]:
    """Takes over the numbers of chunks that were measured before; returns the samples of those: (n,)."""
    try:
        before, facts = (np.load(path, allow_pickle=False) for path in (Path(known), _chunks_of(Path(known))))
        if facts["samples"].sum() != len(before):
            raise ValueError(f"{len(before)} numbers of {facts['samples'].sum()} samples")
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"known={known!r} was not written by measure(): {error}", field="known") from error
    starts = dict(zip(facts["key"].tolist(), (np.cumsum(facts["samples"]) - facts["samples"]).tolist(), strict=True))
    found = np.zeros(len(costs), np.bool_)
    ends = manifest.chunk_first.tolist()
    for key, (first, stop) in zip(_facts(manifest)["key"].tolist(), pairwise(ends), strict=True):
        if (start := starts.get(key)) is not None:
            costs[first:stop], found[first:stop] = before[start : start + stop - first], True
    return found


def _write(path: Path, costs: npt.NDArray[np.generic]) -> None:
    """Writes the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.with_name(f".{path.name}.{secrets.token_hex(4)}.npy")
    try:
        np.save(place, costs)
        os.replace(place, path)
    finally:
        place.unlink(missing_ok=True)
