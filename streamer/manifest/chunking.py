"""Groups samples into chunks: pure functions of sizes, places and hashes.

Whole objects are packed by the hash of their key, as groups of a binary tree over the hash space: a group that
holds more than 1.5 chunk_bytes, or more than 512 objects, is halved. So a chunk is the set of all keys below one
hash prefix, and a new file changes the chunk it falls into and no other (a running content-defined cut would do
the same on average, but its chunks vary from a quarter to the double; these are within 0.75-1.5 of chunk_bytes
while objects are small against them).

If an order is required (`pack_in_order`), consecutive keys share a chunk: its classes are not mixed, and a shuffle of
such chunks would be poor.

A container is cut where a sample begins in the next of equal slices of the object, so that a chunk depends only on its
object, can be cut while the object is still being read, and no small rest remains.
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

# 8 MiB: the optimum of cost and speed of a request; 512 chunks: enough to shuffle and to share
# among lanes; 1.5 million: what catalog and schedules hold.
START_CHUNK_BYTES = 8 << 20
LEAST_CHUNK_BYTES = 256 << 10
MOST_CHUNK_BYTES = 64 << 20
ENOUGH_CHUNKS = 512
TOO_MANY_CHUNKS = 1_500_000
OBJECTS_PER_CHUNK = 512
# Sample starts inside a chunk are uint32, and a chunk is at most twice as long as asked.
CHUNK_BYTES_RANGE = (1 << 10, 1 << 30)
_GROUP_FILL = 1.5


class Cut(msgspec.Struct, frozen=True):
    """Samples cut into chunks; rows are samples, chunks or extents, in order.

    Attributes:
        first_sample: int64, shape (m + 1,): where each chunk begins, and the number of samples.
        first_extent: int64, shape (m + 1,): likewise.
        extent_start, extent_stop: int64: byte ranges in the object.
        sample_start: uint32, shape (n,): chunk-local.
        chunk_bytes: int64, shape (m,).
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
    """The chunk size: the wanted one, or the one by the rule of `chunk_bytes="auto"`.

    Args:
        wanted: bytes, or "auto".
        sizes: sizes of all objects in bytes.
        whole_objects: whether small objects share chunks.

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
    if not whole_objects:
        return int((-(-sizes // chunk_bytes)).sum())
    small = sizes[sizes <= chunk_bytes]
    shared = max(int(small.sum()) // chunk_bytes, len(small) // OBJECTS_PER_CHUNK)
    return shared + len(sizes) - len(small)


def hash_keys(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    """Returns the hashes by which objects are packed: uint64, shape (len(keys),)."""
    raw = b"".join([blake2b(key, digest_size=8).digest() for key in keys])
    return np.frombuffer(raw, ">u8").astype(np.uint64)


def pack_objects(hashes: NDArray[np.uint64], sizes: Int64Array, chunk_bytes: int) -> tuple[Int64Array, Int64Array]:
    """Packs whole objects.

    Returns:
        The order of the objects (a permutation), and the places in it where chunks begin, closed by n.
    """
    by_hash = np.argsort(hashes, kind="stable")
    large = sizes[by_hash] > chunk_bytes
    small = by_hash[~large]
    firsts = _groups(hashes[small], sizes[small], chunk_bytes)
    order = np.concatenate([small, by_hash[large]])
    return order, np.concatenate([firsts, np.arange(len(small), len(order) + 1)])


def pack_in_order(hashes: NDArray[np.uint64], sizes: Int64Array, chunk_bytes: int) -> tuple[Int64Array, Int64Array]:
    """Packs whole objects in the order given.

    From half of `chunk_bytes` on, a chunk ends before the first object whose hash is below a limit that grows with the
    chunk's size. So a new file moves the following cuts only up to the next such object.

    Returns:
        The same as `pack_objects`; the order is 0..n-1.
    """
    # A cut per half a chunk, on average, by bytes (of 0.5 to 1.5 times chunk_bytes) or by objects (256 to 512).
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
    """Returns the first of the sorted places from `least` on, or `otherwise` if there is none."""
    found = bisect_left(places, least)
    return places[found] if found < len(places) else otherwise


def _groups(hashes: NDArray[np.uint64], sizes: Int64Array, chunk_bytes: int) -> Int64Array:
    """The beginnings of the groups, for hashes in ascending order; level by level."""
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
    """The places where chunks begin among the samples of one object.

    A sample larger than `chunk_bytes` is alone; otherwise a chunk has the samples that begin in the same slice. The
    function looks only at a sample and the one before, so a cut never changes when more samples follow.
    """
    slices = max(1, -(-object_bytes // chunk_bytes))
    slice_bytes = max(1, -(-object_bytes // slices))
    slot = starts // slice_bytes
    large = stops - starts > chunk_bytes
    begins = np.ones(len(starts), bool)
    begins[1:] = (slot[1:] != slot[:-1]) | large[1:] | large[:-1]
    return np.flatnonzero(begins)


def cut_object(starts: Int64Array, stops: Int64Array, object_bytes: int, chunk_bytes: int) -> Cut:
    """Cuts the samples of one object into chunks; adjacent samples share an extent."""
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
    """The name of a chunk in the cache: 16 bytes, a digest of everything that determines its bytes and cuts.

    Args:
        format_name: the format, which decides where samples begin.
        extents: url and version of each extent's object.
        ranges: int64, shape (k, 2): start and stop of each extent.
        sample_start: uint32, chunk-local starts.
        codec: change of the bytes between fetch and publish.
    """
    names = b"".join([name_extent(url, version) for url, version in extents])
    content = (np.ascontiguousarray(ranges, "<i8").tobytes(), np.ascontiguousarray(sample_start, "<u4").tobytes())
    return key_of_extents(format_name.encode(), int(codec), (len(extents), len(sample_start)), (names, *content))


def name_extent(url: bytes, version: bytes) -> bytes:
    """Returns an extent's object as `key_of_extents` takes it."""
    return b"%d %d\n%s%s" % (len(url), len(version), url, version)


def key_of_extents(
    format_name: bytes, codec: int, counts: tuple[int, int], content: tuple[bytes | memoryview, ...]
) -> bytes:
    """Returns the key of a chunk; see `chunk_key`.

    Args:
        format_name: the format.
        codec: change of the bytes between fetch and publish.
        counts: number of extents and of samples.
        content: the named objects of the extents, then their ranges as little-endian int64, then the starts of the
            samples as little-endian uint32.
    """
    head = b"%s %d %d %d\n" % (format_name, codec, *counts)
    return blake2b(b"".join((head, *content)), digest_size=16, person=b"streamer-chunk-1").digest()


def key_at_endpoint(key: bytes, endpoint: str) -> bytes:
    """Returns the key of the same chunk at an endpoint that a client of a shared engine has named ("" if none was).

    Other bytes may be there under the same url and version.
    """
    if not endpoint:
        return key
    return blake2b(
        key + endpoint.encode("utf-8", "surrogateescape"), digest_size=16, person=b"streamer-chunk-3"
    ).digest()
