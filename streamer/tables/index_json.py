"""Reads what MDS and LitData have in common: an `index.json` that lists shards, and shards with a head.

`tables/mds.py` and `tables/litdata/` use it. LitData calls a shard a chunk. The head of a shard is the number of its
samples, the byte at which each begins, and the byte at which the last one ends, all as uint32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct, error
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import DecodeError, ManifestError
from streamer.formats.base import Field, FieldSpec, SampleName
from streamer.formats.failures import make_damage_error, make_refusal
from streamer.formats.reading import Reading, read_range, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need

INDEX = "index.json"
# Max bytes of an index.json: it then lists 2 million shards.
MAX_INDEX_BYTES = 1 << 30
Index = TypeVar("Index")
_NUMBER = np.dtype("<u4")
# Max bytes of the frames or record batches that are joined to one block.
_BLOCK_BYTES = 8 << 20


class ListedChunks(msgspec.Struct, frozen=True):
    """One index file, and the shards below its folder.

    Attributes:
        record: the index file.
        folder: url of its folder, with a slash at the end.
        objects: the shards in the folder and in folders below it, by their path from there.
    """

    record: ObjectRecord
    folder: str
    objects: Mapping[str, ObjectRecord]

    def find(self, name: str) -> ObjectRecord | None:
        """Returns the listed shard with this path; None if there is none. The path itself is never opened."""
        return self.objects.get(name)

    def refusal(self, reason: str) -> ManifestError:
        """Makes the error of this index file, which cannot be used for the given reason."""
        return make_refusal(self.record, f"cannot be used: {reason}")


def read_indexes(
    accepted: Sequence[ObjectRecord],
    others: Mapping[str, ObjectRecord],
    decode: Callable[[memoryview], Index],
    names: Callable[[Index], Iterable[str]],
) -> Reading[list[tuple[ListedChunks, Index]]]:
    """Reads the index files above the shards, and returns each with what it says, in the order of their first shards.

    An index file is not read if those of folders above it name all of its shards: large datasets are joined from parts
    that have index files, too.

    Args:
        accepted: the shards, at least one, in the order of the urls.
        others: the other objects, by url.
        decode: decodes an index file; raises msgspec.MsgspecError or ValueError.
        names: returns the paths of the shards that an index file lists.

    Raises:
        ManifestError: there is no index file, or one is empty, too long or cannot be decoded.
    """
    found: list[tuple[ListedChunks, Index]] = []
    named: set[str] = set()
    for level in _levels(accepted, others):
        wanted = [listed for listed in level if any(one.url not in named for one in listed.objects.values())]
        for listed in wanted:
            if not 0 < listed.record.size <= MAX_INDEX_BYTES:
                raise listed.refusal(f"{listed.record.size} bytes; 1 to {MAX_INDEX_BYTES} are read")
        answers = yield from read_ranges([Need(0, listed.record.size, listed.record) for listed in wanted])
        for listed, answer in zip(wanted, answers, strict=True):
            try:
                index = decode(answer)
            except (msgspec.MsgspecError, ValueError, RecursionError) as cause:
                raise listed.refusal(f"not an index file as this format has it: {cause}") from cause
            found.append((listed, index))
            named |= {one.url for name in names(index) if (one := listed.find(name))}
    if not found:
        raise ManifestError(
            f"no {INDEX} is listed beside the {len(accepted)} shards (the first is {accepted[0].url}) or above them; "
            "the url must be the folder that it is in",
            url=accepted[0].url,
        )
    places = {record.url: place for place, record in enumerate(accepted)}
    return sorted(found, key=lambda pair: min(places[record.url] for record in pair[0].objects.values()))


def _levels(accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Iterator[list[ListedChunks]]:
    """Yields lists of the index files of one depth of folders, those of upper folders first.

    Index files without shards below them are left out.
    """
    indexes = [record for url, record in others.items() if url.rpartition("/")[2] == INDEX]
    below: dict[str, dict[str, ObjectRecord]] = {record.url.removesuffix(INDEX): {} for record in indexes}
    for record in accepted:
        folder = record.url
        # The loop goes over all folders above the shard; their urls have a slash at the end.
        while slash := folder.rstrip("/").rfind("/") + 1:
            folder = folder[:slash]
            if folder in below:
                below[folder][record.url.removeprefix(folder)] = record
    made = [
        ListedChunks(record, record.url.removesuffix(INDEX), below[record.url.removesuffix(INDEX)])
        for record in indexes
    ]
    for depth in sorted({listed.folder.count("/") for listed in made}):
        yield [listed for listed in made if listed.folder.count("/") == depth and listed.objects]


def runs_of(lengths: NDArray[np.integer[Any]]) -> Iterator[tuple[int, int]]:
    """Yields runs of consecutive frames or record batches, one for each block, as half-open ranges of their numbers.

    A run has at most 8 MiB, or is a single frame or batch.

    Args:
        lengths: bytes of each frame or batch.
    """
    first = 0
    filled = 0
    for number, length in enumerate(lengths.tolist()):
        if number > first and filled + length > _BLOCK_BYTES:
            yield first, number
            first = number
            filled = 0
        filled += length
    if len(lengths):
        yield first, len(lengths)


def head_bytes(samples: int) -> int:
    """Returns the bytes of the head of a shard with so many samples."""
    return _NUMBER.itemsize * (samples + 2)


def read_offsets(content: memoryview, samples: int, size: int, *, behind: bool = False) -> NDArray[np.int64]:
    """Returns the bytes at which samples begin, and the one at which the last one ends: int64, shape (samples + 1,).

    Args:
        content: bytes of the shard, at least its head.
        samples: number of samples, by the index file.
        size: length of the shard in bytes.
        behind: whether other bytes may follow the samples.

    Raises:
        ValueError: the head contradicts the index file or itself.
    """
    head = head_bytes(samples)
    if size < head or len(content) < head:
        raise ValueError(f"{size} bytes are too few for the places of {samples} samples")
    numbers = np.frombuffer(content, _NUMBER, samples + 2).astype(np.int64)
    found = int(numbers[0])
    offsets = numbers[1:]
    if found != samples:
        raise ValueError(f"it has {found} samples, index.json says {samples}")
    if (np.diff(offsets) < 0).any() or offsets[0] < head:
        raise ValueError(f"the places of its {samples} samples are not ascending bytes behind its head")
    if offsets[-1] > size or (offsets[-1] < size and not behind):
        raise ValueError(f"its samples end at byte {offsets[-1]}, it has {size}")
    return offsets


def index_offsets(record: ObjectRecord, samples: int) -> Reading[list[int]]:
    """Reads the head of the shard that is being indexed; returns where samples begin, and where the last one ends.

    Args:
        record: the shard.
        samples: number of samples, by the index file.

    Raises:
        ManifestError: the head contradicts the index file or itself.
    """
    head = head_bytes(samples)
    content = yield from read_range(0, head if head <= record.size else 0)
    try:
        found: list[int] = read_offsets(content, samples, record.size).tolist()
    except ValueError as cause:
        raise make_damage_error(record, str(cause), 0) from cause
    return found


class LengthsOpener:
    """Opens samples that are a uint32 length for each field of varying length, and then the fields.

    Args:
        fields: fields of every sample.
        sizes: bytes of each field; 0 if its length varies.
        what: what messages call a sample ("an MDS sample").
    """

    def __init__(self, fields: Sequence[FieldSpec], sizes: Sequence[int], what: str) -> None:
        self._fields = [(spec.name, spec.kind, size) for spec, size in zip(fields, sizes, strict=True)]
        self._lengths = Struct(f"<{sum(not size for size in sizes)}I")
        self._what = what

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns no key, and the fields in their order; raises DecodeError if the lengths do not fit the content."""
        try:
            lengths = iter(self._lengths.unpack_from(content))
        except error as cause:
            raise DecodeError(f"not {self._what}: {len(content)} bytes, {cause}") from cause
        position = self._lengths.size
        fields = []
        for field, kind, size in self._fields:
            stop = position + (size or next(lengths))
            fields.append(Field(field, content[position:stop], kind))
            position = stop
        if position != len(content):
            raise DecodeError(
                f"not {self._what}: its {len(fields)} fields take {position} bytes, it has {len(content)}"
            )
        return None, fields
