"""Plans the order of a pack's samples, their shards, and the batches in which a task reads them. Without I/O.

`prepared.py` makes the plan. `reading.py` and `sources.py` read the batches. `task.py` takes keys of raw files from
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.splitmix import fold, fold_each
from streamer.errors import ConfigError, PackError
from streamer.formats.names import base_name, extension
from streamer.formats.registry import restore_format
from streamer.formats.tar import BLOCK
from streamer.manifest.model import Chunk, ObjectRecord, SampleName
from streamer.manifest.table import Manifest

Int64Array = NDArray[np.int64]
Order = Literal["manifest", "name", "shuffle"]

# About so many bytes are read at once. With order="shuffle" the samples of a batch are mixed. A task holds two batches.
BATCH_BYTES = 128 << 20
# Least and most length of a shard in bytes: stores take an upload in at most 9,000 parts.
SHARD_BYTES_RANGE = (1 << 10, 64 << 30)
# Overhead of a sample in a tar: two headers, and half a block of padding after each content.
TAR_OVERHEAD = 3 * BLOCK
# Words that are hashed with the seed, so that both shuffles differ.
_ORDER_WORD = 1
_BATCH_WORD = 2


class ShardPlan(msgspec.Struct, frozen=True):
    """The samples of each shard.

    Attributes:
        ordinals: ordinals of the source's samples, in the order of the shards: int64, shape (n,).
        batch_first: beginnings of the batches among the ordinals, closed by n.
        shard_first: beginnings of the shards among the batches, closed by the number of batches.
        shard_bytes: estimated length of each shard in bytes: int64, shape (shards,).
    """

    ordinals: Int64Array
    batch_first: Int64Array
    shard_first: Int64Array
    shard_bytes: Int64Array

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.shard_bytes)

    def batches(self, shard: int) -> list[Int64Array]:
        """Returns the ordinals of each batch of a shard, in the order in which they are written."""
        first = self.shard_first[shard]
        stop = self.shard_first[shard + 1]
        edges = self.batch_first[first : stop + 1].tolist()
        return [self.ordinals[a:b] for a, b in pairwise(edges)]


class RecodedBatch(msgspec.Struct, frozen=True):
    """Samples of blocks that are read and decoded together.

    Attributes:
        ordinals: ordinals in the source's manifest.
        chunks: the chunks that contain them, which are read as a whole.
        owner: index of each sample's chunk in `chunks`.
    """

    ordinals: list[int]
    chunks: list[Chunk]
    owner: list[int]


class Batch(msgspec.Struct, frozen=True):
    """Samples that are read together, of which each is one range of an object.

    Attributes:
        ordinals: ordinals in the source's manifest.
        objects: the objects that contain them.
        owner: index of each sample's object in `objects`.
        start, stop: half-open range of each sample in its object, in bytes.
        names: name and label of each sample if every object is one sample, otherwise empty.
    """

    ordinals: list[int]
    objects: list[ObjectRecord]
    owner: list[int]
    start: list[int]
    stop: list[int]
    names: list[SampleName]


def make_plan(
    manifest: Manifest,
    order: Order,
    seed: int,
    shard_bytes: int,
    overhead: int = TAR_OVERHEAD,
    *,
    selected: Int64Array | None = None,
    more_bytes: Callable[[Int64Array], Int64Array] | None = None,
) -> ShardPlan:
    """Plans the shards of a dataset.

    Args:
        manifest: manifest of the dataset.
        order: order of the samples. "name" is that of the paths of raw files.
        seed: seed of the shuffle.
        shard_bytes: approximate length of a shard in bytes.
        overhead: bytes that a sample takes in a shard besides its own.
        selected: ordinals of the samples that are written, ascending, or None for all.
        more_bytes: is given ordinals, and returns about how many bytes each sample gets from joins.

    Raises:
        ConfigError: `order` is unknown or does not fit the format, or `shard_bytes` is not within its range.
    """
    if order not in get_args(Order):
        raise ConfigError(f"order={order!r} is not one of {', '.join(get_args(Order))}", field="order")
    least, most = SHARD_BYTES_RANGE
    if not least <= shard_bytes <= most:
        raise ConfigError(f"shard_bytes={shard_bytes} is not within {least}..{most} bytes", field="shard_bytes")
    if order == "name" and not manifest.whole_objects:
        raise ConfigError(
            f"order='name' needs the names of the samples, which only raw files have before they are read, not "
            f"{manifest.format!r}",
            field="order",
        )
    ordinals = np.arange(manifest.samples) if selected is None else selected
    sizes = (_sizes(manifest) + overhead)[ordinals]
    if more_bytes is not None:
        sizes = sizes + more_bytes(ordinals)
    # The places in `ordinals` where a chunk begins, closed by the number of samples. Chunks without a selected sample
    # are left out.
    chunk_first = np.unique(ordinals.searchsorted(manifest.chunk_first))
    if order == "shuffle" and not manifest.whole_objects:
        return _plan_random_chunks(ordinals, chunk_first, sizes, seed=seed, shard_bytes=shard_bytes)
    if manifest.recoded:
        return _cut(ordinals, sizes, chunk_first, shard_bytes)
    places = np.arange(len(ordinals))
    if order == "name":
        names = [manifest.name(ordinal).object_key for ordinal in ordinals.tolist()]
        places = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    if order == "shuffle":
        places = np.argsort(fold_each(fold(seed, _ORDER_WORD), ordinals), kind="stable")
    return _cut(ordinals[places], sizes[places], np.arange(len(ordinals) + 1), shard_bytes)


# A batch of a source. Where the loader reads the source, a batch is the ordinals of its samples.
AnyBatch: TypeAlias = Batch | RecodedBatch | Int64Array


def batch_of(manifest: Manifest, ordinals: Int64Array) -> Batch | RecodedBatch:
    """Returns where the samples with these ordinals are: a `RecodedBatch` for a dataset of blocks, else a `Batch`."""
    if manifest.recoded:
        numbers, chunk_of = np.unique(manifest.locate(ordinals)[0], return_inverse=True)
        return RecodedBatch(ordinals.tolist(), list(map(manifest.chunk, numbers.tolist())), chunk_of.tolist())
    if manifest.whole_objects:
        objects = [manifest.object(ordinal) for ordinal in ordinals.tolist()]
        names = [manifest.name(ordinal) for ordinal in ordinals.tolist()]
        places = list(range(len(objects)))
        sizes = [record.size for record in objects]
        return Batch(
            ordinals=ordinals.tolist(), objects=objects, owner=places, start=[0] * len(objects), stop=sizes, names=names
        )
    chunks, starts, stops = manifest.locate(ordinals)
    known = {number: manifest.chunk(number) for number in set(chunks.tolist())}
    found = [
        known[number].extent_of(start, stop)
        for number, start, stop in zip(chunks.tolist(), starts.tolist(), stops.tolist(), strict=True)
    ]
    places_of = {record: place for place, record in enumerate(dict.fromkeys(extent.object for extent in found))}
    owner = [places_of[extent.object] for extent in found]
    return Batch(
        ordinals=ordinals.tolist(),
        objects=list(places_of),
        owner=owner,
        start=[e.start for e in found],
        stop=[e.stop for e in found],
        names=[],
    )


def key_of_file(path: str) -> str:
    """Returns the key of a raw file, its path without the extension: "a/b" for "a/b.tar.gz"."""
    for _ in range(extension(path).count(".") + 1 if "." in base_name(path)[1:] else 0):
        path = path.rpartition(".")[0]
    return path


def refuse_double_keys(manifest: Manifest, selected: Int64Array | None = None) -> None:
    """Refuses raw files that would have one key in a tar, such as a.jpg and a.png; does nothing for other datasets.

    Args:
        manifest: manifest of the dataset.
        selected: ordinals of the samples that are written, or None for all.

    Raises:
        PackError: two files would be samples with one key. The error names both.
    """
    if not manifest.whole_objects:
        return
    seen: dict[str, str] = {}
    for ordinal in range(manifest.samples) if selected is None else selected.tolist():
        path = manifest.name(ordinal).object_key
        folder, slash, name = key_of_file(path).rpartition("/")
        key = f"{folder}{slash}{name.replace('.', '_')}"
        if key in seen:
            raise PackError(
                f"{seen[key]} and {path} would both be sample {key!r}: name other extensions (extensions=), rename "
                "one, or give the samples other keys in a transform",
                sample=key,
            )
        seen[key] = path


def _sizes(manifest: Manifest) -> Int64Array:
    """Returns the bytes of each sample; where the index of blocks does not know them, equal shares of its chunk."""
    if manifest.recoded:
        if (known := restore_format(manifest).find_sample_bytes(manifest)) is not None:
            return known
        return np.repeat(manifest.chunk_local_bytes // np.maximum(manifest.chunk_samples, 1), manifest.chunk_samples)
    _, starts, stops = manifest.locate(np.arange(manifest.samples))
    return stops - starts


def _shuffle(values: Int64Array, state: int) -> Int64Array:
    return values[np.argsort(fold_each(state, values), kind="stable")]


def _plan_random_chunks(
    ordinals: Int64Array, chunk_first: Int64Array, sizes: Int64Array, *, seed: int, shard_bytes: int
) -> ShardPlan:
    """Plans chunks in a random order, so that a task reads whole chunks, and mixes the samples of each batch.

    Args:
        ordinals: ordinals of the samples that are written, ascending.
        chunk_first: places in `ordinals` where chunks begin, closed by the number of samples.
        sizes: bytes of each of these samples in a shard.
        seed: seed of the shuffle.
        shard_bytes: approximate length of a shard in bytes.
    """
    chunks = _shuffle(np.arange(len(chunk_first) - 1), fold(seed, _ORDER_WORD))
    counts = np.diff(chunk_first)[chunks]
    edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    places = np.repeat(chunk_first[:-1][chunks] - edges[:-1], counts) + np.arange(edges[-1])
    plan = _cut(ordinals[places], sizes[places], edges, shard_bytes)
    for first, stop in pairwise(plan.batch_first.tolist()):
        plan.ordinals[first:stop] = _shuffle(plan.ordinals[first:stop], fold(seed, _BATCH_WORD))
    return plan


def _cut(ordinals: Int64Array, sizes: Int64Array, unit_first: Int64Array, shard_bytes: int) -> ShardPlan:
    """Cuts samples into shards of about equal length, and each shard into batches of about equal length.

    Args:
        ordinals: ordinals of the samples in the order of the shards.
        sizes: bytes of each of these samples in a shard.
        unit_first: places in `ordinals` where a shard or batch may begin, closed by the number of samples.
        shard_bytes: approximate length of a shard in bytes.
    """
    total = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)[unit_first]
    shards = _even(total, 0, len(unit_first) - 1, shard_bytes)
    batches: list[int] = []
    shard_first = [0]
    for first, stop in pairwise(shards):
        batches += _even(total, first, stop, BATCH_BYTES)[:-1]
        shard_first.append(len(batches))
    places = np.array([*batches, len(unit_first) - 1], np.int64)
    return ShardPlan(ordinals, unit_first[places], np.array(shard_first, np.int64), np.diff(total[shards]))


def _even(total: Int64Array, first: int, stop: int, limit: int) -> list[int]:
    """Cuts the units `[first, stop)` into slices of about equal length, none much longer than `limit`.

    Args:
        total: bytes before each unit, closed by the bytes of all.
        first: number of the first unit.
        stop: number of the unit after the last one.
        limit: length of a slice in bytes.

    Returns:
        The first unit of each slice, closed by `stop`.
    """
    length = int(total[stop] - total[first])
    count = max(1, -(-length // limit))
    targets: Sequence[int] = [int(total[first]) + length * i // count for i in range(count)]
    found = np.searchsorted(total[first : stop + 1], targets) + first
    return [*dict.fromkeys(min(place, stop) for place in found.tolist() if place < stop), stop]
