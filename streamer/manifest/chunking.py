"""Cuts samples into chunks, chooses the size of chunks, and computes their keys. Pure functions.

Used by `indexing/`, `shards/finish.py`, `manifest/selection.py` and `loader/members/joins.py`, and by
`manifest/validation.py`, which computes the keys again.

Whole objects are packed by the hash of their key, as groups of a binary tree over all hashes (`pack_objects`): a group
that holds more than 1.5 chunk_bytes, or more than 512 objects, is halved. So a chunk has all small objects whose hashes
begin with the same bits, and a new object changes the chunk that it falls into and no other. Chunks have 0.75 to 1.5
chunk_bytes while objects are small against them. A running content-defined cut would change one chunk on average, too,
but its chunks have a quarter to twice the wanted size. An object larger than chunk_bytes is a chunk of its own.

If the user wants the objects in the order of their keys (`pack_in_order`), consecutive ones share a chunk. Such a chunk
has few classes, so that a shuffle of chunks mixes them poorly.

A container is divided into equal slices, and a chunk has the samples that begin in one slice (`cut_spans`). So a chunk
depends only on its object, can be cut while the object is still being read, and no small rest remains.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError
from streamer.manifest.model import Codec

Int64Array = NDArray[np.int64]

# The rule of chunk_bytes="auto" begins with 8 MiB, the optimum of cost and speed of a request. It halves the size, down
# to the least, while there are fewer than 512 chunks, which are enough to shuffle and to share among lanes. It doubles
# the size, up to the most, while there are over 1.5 million chunks, which is what catalog and schedules hold.
START_CHUNK_BYTES = 8 << 20
LEAST_CHUNK_BYTES = 256 << 10
MOST_CHUNK_BYTES = 64 << 20
ENOUGH_CHUNKS = 512
TOO_MANY_CHUNKS = 1_500_000
OBJECTS_PER_CHUNK = 512
# Bytes of a chunk that may be asked for. Starts of samples are uint32, and a chunk is at most twice as long as asked.
CHUNK_BYTES_RANGE = (1 << 10, 1 << 30)
# Most bytes of several objects that share a chunk, as a multiple of chunk_bytes.
_GROUP_FILL = 1.5


class Cut(msgspec.Struct, frozen=True):
    """The n samples of one object, cut into m chunks with e extents.

    Attributes:
        first_sample: int64, shape (m + 1,): number of each chunk's first sample, and n.
        first_extent: int64, shape (m + 1,): number of each chunk's first extent, and e.
        extent_start, extent_stop: int64, shape (e,): half-open byte ranges in the object.
        sample_start: uint32, shape (n,): byte of its chunk at which each sample begins.
        chunk_bytes: int64, shape (m,): length of each chunk.
    """

    first_sample: Int64Array
    first_extent: Int64Array
    extent_start: Int64Array
    extent_stop: Int64Array
    sample_start: NDArray[np.uint32]
    chunk_bytes: Int64Array

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_bytes)


def choose_chunk_bytes(wanted: int | Literal["auto"], sizes: Int64Array, whole_objects: bool) -> int:
    """Returns the size of chunks in bytes: the wanted one, or for "auto" a power of two of 256 KiB to 64 MiB.

    Args:
        wanted: bytes, or "auto".
        sizes: sizes of all objects in bytes.
        whole_objects: whether every object is one sample, so that small ones share chunks.

    Raises:
        ConfigError: neither "auto" nor within 1 KiB..1 GiB.
    """
    least, most = CHUNK_BYTES_RANGE
    if wanted != "auto":
        if not least <= wanted <= most:
            raise ConfigError(
                f"chunk_bytes={wanted!r} is not 'auto' and not within {least}..{most} bytes", field="chunk_bytes"
            )
        return wanted
    chosen = START_CHUNK_BYTES
    while chosen > LEAST_CHUNK_BYTES and _estimate_chunks(sizes, chosen, whole_objects) < ENOUGH_CHUNKS:
        chosen //= 2
    while chosen < MOST_CHUNK_BYTES and _estimate_chunks(sizes, chosen, whole_objects) > TOO_MANY_CHUNKS:
        chosen *= 2
    return chosen


def _estimate_chunks(sizes: Int64Array, chunk_bytes: int, whole_objects: bool) -> int:
    """Returns about how many chunks of this size the objects make."""
    if not whole_objects:
        return int((-(-sizes // chunk_bytes)).sum())
    small = sizes[sizes <= chunk_bytes]
    shared = max(int(small.sum()) // chunk_bytes, len(small) // OBJECTS_PER_CHUNK)
    return shared + len(sizes) - len(small)


def hash_keys(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    """Returns the hash of each key, by which objects are packed: uint64, shape (len(keys),)."""
    raw = b"".join([blake2b(key, digest_size=8).digest() for key in keys])
    return np.frombuffer(raw, ">u8").astype(np.uint64)


def pack_objects(hashes: NDArray[np.uint64], sizes: Int64Array, chunk_bytes: int) -> tuple[Int64Array, Int64Array]:
    """Packs whole objects into chunks by their hashes. Those larger than `chunk_bytes` come last, each alone.

    Args:
        hashes: uint64, shape (n,): result of `hash_keys`.
        sizes: int64, shape (n,): bytes of each object.
        chunk_bytes: wanted size of chunks.

    Returns:
        Numbers of the objects in the order of the samples, int64, shape (n,); and for each chunk the place of its first
        object in that order, and n: int64, shape (m + 1,).
    """
    by_hash = np.argsort(hashes, kind="stable")
    large = sizes[by_hash] > chunk_bytes
    small = by_hash[~large]
    firsts = _groups(hashes[small], sizes[small], chunk_bytes)
    order = np.concatenate([small, by_hash[large]])
    return order, np.concatenate([firsts, np.arange(len(small), len(order) + 1)])


def pack_in_order(hashes: NDArray[np.uint64], sizes: Int64Array, chunk_bytes: int) -> tuple[Int64Array, Int64Array]:
    """Packs whole objects into chunks in the order given.

    A chunk that has half of `chunk_bytes`, or 256 objects, ends before the next object whose hash is below a limit,
    which grows with the size of that object. It ends at 1.5 `chunk_bytes` or 512 objects in any case. So a new object
    mostly moves only a few of the cuts behind it. An object larger than `chunk_bytes` is alone.

    Args:
        hashes: uint64, shape (n,): result of `hash_keys`.
        sizes: int64, shape (n,): bytes of each object.
        chunk_bytes: wanted size of chunks.

    Returns:
        The same as `pack_objects`; the order is 0..n-1.
    """
    # Hashes below these limits come once per half of chunk_bytes, and once per 128 objects, on average.
    share = np.maximum(2 * sizes / chunk_bytes, 4 / OBJECTS_PER_CHUNK)
    cuts = np.flatnonzero(hashes.astype(np.float64) < share * 2.0**64).tolist()
    large = np.flatnonzero(sizes > chunk_bytes).tolist()
    total = [0, *np.cumsum(sizes).tolist()]
    firsts = []
    first = 0
    count = len(sizes)
    while first < count:
        firsts.append(first)
        if sizes[first] > chunk_bytes:
            first += 1
            continue
        half = min(bisect_left(total, total[first] + chunk_bytes // 2, first + 1), first + OBJECTS_PER_CHUNK // 2)
        full = min(bisect_right(total, total[first] + int(chunk_bytes * _GROUP_FILL)) - 1, first + OBJECTS_PER_CHUNK)
        first = max(first + 1, min(_first_place(cuts, half, count), _first_place(large, first, count), full, count))
    return np.arange(count, dtype=np.int64), np.array([*firsts, count], np.int64)


def _first_place(places: Sequence[int], least: int, otherwise: int) -> int:
    """Returns the first of the ascending places that is `least` or more, or `otherwise` if there is none."""
    found = bisect_left(places, least)
    return places[found] if found < len(places) else otherwise


def _groups(hashes: NDArray[np.uint64], sizes: Int64Array, chunk_bytes: int) -> Int64Array:
    """Returns the places where groups of the tree of hashes begin, ascending; works level by level.

    Args:
        hashes: ascending.
        sizes: bytes of each object.
        chunk_bytes: wanted size of chunks.
    """
    total = np.concatenate([[0], np.cumsum(sizes)])
    limit = int(chunk_bytes * _GROUP_FILL)
    low = np.array([0] if len(hashes) else [], np.int64)
    high = np.array([len(hashes)] if len(hashes) else [], np.int64)
    done = [np.empty(0, np.int64)]
    for bit in range(63, -1, -1):
        full = (total[high] - total[low] > limit) | (high - low > OBJECTS_PER_CHUNK)
        done.append(low[~full])
        low, high = low[full], high[full]
        if not len(low):
            break
        prefix = hashes[low] >> np.uint64(bit) | np.uint64(1)
        middle = np.searchsorted(hashes, prefix << np.uint64(bit)).astype(np.int64)
        # All hashes of [low, high) agree above `bit`, so the middle is where that bit becomes 1.
        middle = np.clip(middle, low, high)
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        low, high = low[low < high], high[low < high]
    return np.sort(np.concatenate([*done, low]))


def cut_spans(starts: Int64Array, stops: Int64Array, object_bytes: int, chunk_bytes: int) -> Int64Array:
    """Returns the numbers of the samples with which the chunks of one object begin: int64, ascending.

    A sample larger than `chunk_bytes` is alone. Otherwise a chunk has the samples that begin in the same one of the
    equal slices, of at most `chunk_bytes`, into which the object is divided. Whether a chunk begins with a sample
    depends on this sample and the one before: more samples at the end leave the earlier cuts as they are.

    Args:
        starts: int64, shape (n,), ascending: first byte of each sample in the object.
        stops: int64, shape (n,): byte behind each sample.
        object_bytes: size of the object.
        chunk_bytes: wanted size of chunks.
    """
    slices = max(1, -(-object_bytes // chunk_bytes))
    slice_bytes = max(1, -(-object_bytes // slices))
    slot = starts // slice_bytes
    large = stops - starts > chunk_bytes
    begins = np.ones(len(starts), bool)
    begins[1:] = (slot[1:] != slot[:-1]) | large[1:] | large[:-1]
    return np.flatnonzero(begins)


def cut_object(starts: Int64Array, stops: Int64Array, object_bytes: int, chunk_bytes: int) -> Cut:
    """Cuts the samples of one object into chunks; arguments as `cut_spans`. Adjacent samples share an extent."""
    first = cut_spans(starts, stops, object_bytes, chunk_bytes)
    opens = np.ones(len(starts), bool)
    opens[1:] = starts[1:] != stops[:-1]
    opens[first] = True
    extents = np.flatnonzero(opens)
    lasts = np.concatenate([extents[1:], [len(starts)]]).astype(np.int64) - 1
    edges = np.concatenate([first, [len(starts)]]).astype(np.int64)
    position = np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int64)
    base = np.repeat(position[first], np.diff(edges))
    return Cut(
        first_sample=edges,
        first_extent=np.searchsorted(extents, edges).astype(np.int64),
        extent_start=starts[extents],
        extent_stop=stops[lasts] if len(starts) else stops,
        sample_start=(position[:-1] - base).astype(np.uint32),
        chunk_bytes=np.diff(position[edges]),
    )


def chunk_key(
    format_name: str,
    extents: Sequence[tuple[bytes, bytes]],
    ranges: Int64Array,
    sample_start: NDArray[np.uint32],
    codec: Codec = Codec.IDENTITY,
) -> bytes:
    """Returns the key of a plain chunk, its name in the cache: a digest of all that determines its bytes and samples.

    Args:
        format_name: name of the format, which decides where samples begin.
        extents: url and version of each extent's object.
        ranges: int64, shape (k, 2): start and stop of each extent.
        sample_start: uint32, chunk-local starts.
        codec: change of the bytes between fetch and publish.

    Returns:
        16 bytes.
    """
    names = b"".join([name_extent(url, version) for url, version in extents])
    content = (np.ascontiguousarray(ranges, "<i8").tobytes(), np.ascontiguousarray(sample_start, "<u4").tobytes())
    return key_of_extents(format_name.encode(), int(codec), (len(extents), len(sample_start)), (names, *content))


def name_extent(url: bytes, version: bytes) -> bytes:
    """Returns url and version of an extent's object as `key_of_extents` takes them."""
    return b"%d %d\n%s%s" % (len(url), len(version), url, version)


def key_of_extents(
    format_name: bytes, codec: int, counts: tuple[int, int], content: tuple[bytes | memoryview, ...]
) -> bytes:
    """Returns the key of a plain chunk (16 bytes) from its encoded parts; see `chunk_key`.

    Args:
        format_name: name of the format.
        codec: change of the bytes between fetch and publish.
        counts: number of extents and of samples.
        content: `name_extent` of each extent, then all ranges as little-endian int64, then the starts of all samples
            as little-endian uint32. Only the joined bytes count.
    """
    head = b"%s %d %d %d\n" % (format_name, codec, *counts)
    return blake2b(b"".join((head, *content)), digest_size=16, person=b"streamer-chunk-1").digest()


def key_at_endpoint(key: bytes, endpoint: str) -> bytes:
    """Returns the key of the same chunk at an endpoint that a client of a shared engine has named; "" changes nothing.

    Such an endpoint may have other bytes under the same url and version.
    """
    if not endpoint:
        return key
    return blake2b(
        key + endpoint.encode("utf-8", "surrogateescape"), digest_size=16, person=b"streamer-chunk-3"
    ).digest()
