"""The format "recordio" (MXNet): a sample is a record.

`formats/registry.py` makes it for engine and workers. A record is one part, or several if its content contains the
magic number. A part is `u32 magic, u32 kind << 29 | length, content`, padded to 4 bytes. Kind 0 is a whole record. 1, 2
and 3 are the first, a middle and the last part of one, between which the magic number was left out. The content of a
record begins with `u32 labels, f32 label, u64 id, u64 id2`. If `labels` is not 0, as many f32 labels follow, and
`label` has no meaning.
Source: dmlc-core/include/dmlc/recordio.h; mxnet/recordio.py, `pack`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct

import numpy as np

from streamer.errors import DecodeError
from streamer.formats.base import Facts, Field, Format, SampleName
from streamer.formats.failures import make_damage_error
from streamer.formats.names import kind_of_bytes
from streamer.formats.reading import Window
from streamer.formats.sidecars import pair_sidecars, walk_sidecar
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Source, Span, Surveying

MAGIC = 0xCED7230A
_MAGIC_BYTES = MAGIC.to_bytes(4, "little")
_PART = Struct("<II")
_HEADER = Struct("<IfQQ")
_LENGTH_BITS = 29
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class RecordIO(Format, frozen=True, forbid_unknown_fields=True):
    """Reads RecordIO files. If there is an index file `x.idx` beside `x.rec`, the index comes from it.

    Attributes:
        header: whether records begin with labels and a number, as `mxnet.recordio.pack` writes them. If not, the bytes
            of a record are the field "record".
    """

    name = "recordio"
    endings = (".rec",)
    header: bool = True

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Pairs files with the index files beside them; takes all files."""
        yield from ()
        return pair_sidecars(accepted, others, ("/.idx", ".idx"), 2 * _PART.size)

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the records, by the index file or one after the other.

        Raises:
            ManifestError: the file is damaged or cut off, or its index file is of another file.
        """
        if source.sidecar is not None:
            yield from walk_sidecar(
                source=source, start=start, edges_of=_edges, head_bytes=_PART.size, is_head=_begins_record
            )
            return
        record = source.record
        size = record.size
        at = start
        window = Window(size, at)
        # The byte at which a record begins whose last part has not come yet; -1 between records.
        begin = -1
        while at < size:
            if at + _PART.size > size:
                raise make_damage_error(record, f"cut off inside the head of a record, {size - at} bytes", at)
            if not window.covers(at, at + _PART.size):
                yield from window.reach(at, at + _PART.size)
            magic, word = _PART.unpack_from(window.content, at - window.start)
            kind = word >> _LENGTH_BITS
            if magic != MAGIC:
                raise make_damage_error(record, "not a record: the magic number is missing", at)
            if kind > _LAST or (kind in {_WHOLE, _FIRST}) != (begin < 0):
                raise make_damage_error(record, f"a part of kind {kind} where none may be", at)
            begin = at if begin < 0 else begin
            following = _pad_stop(at + _PART.size + (word & _LENGTH_MASK))
            if following > size:
                raise make_damage_error(
                    record, f"cut off inside a record, which needs {following - size} more bytes", at
                )
            at = following
            if kind in {_WHOLE, _LAST}:
                yield Span(begin, at)
                begin = -1
        if begin >= 0:
            raise make_damage_error(record, "cut off: the last part of a record is missing", begin)

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        """Returns the record's number as key, and the fields "image" and "label".

        Without `header` it returns no key, and the field "record".

        Raises:
            DecodeError: the bytes are not a record, or have no header.
        """
        payload = _payload(content)
        if not self.header:
            return None, [Field("record", payload, "bytes")]
        if len(payload) < _HEADER.size:
            raise DecodeError(
                f"a record of {len(payload)} bytes has no header; records without: RecordIO(header=False)", offset=0
            )
        labels, _, number, _ = _HEADER.unpack_from(payload)
        start = _HEADER.size + 4 * labels
        if start > len(payload):
            raise DecodeError(f"a record of {len(payload)} bytes cannot have {labels} labels", offset=0)
        label = (
            Field("label", payload[_HEADER.size : start], "<f4[]") if labels else Field("label", payload[4:8], "<f4")
        )
        image = payload[start:]
        return str(number), [Field("image", image, kind_of_bytes(image)), label]


def _payload(content: memoryview) -> memoryview:
    """Returns the content of a record, as a view if it has one part; raises DecodeError."""
    parts: list[memoryview | bytes] = []
    at = 0
    size = len(content)
    while at < size:
        if at + _PART.size > size:
            raise DecodeError(f"a record ends inside the head of a part, at byte {at}", offset=at)
        magic, word = _PART.unpack_from(content, at)
        start = at + _PART.size
        stop = start + (word & _LENGTH_MASK)
        at = _pad_stop(stop)
        kind = word >> _LENGTH_BITS
        if magic != MAGIC or at > size or kind != _find_part_kind(len(parts), at == size):
            raise DecodeError(f"not a record: a part of kind {kind} at byte {start - _PART.size}", offset=start)
        parts.append(content[start:stop])
    if not parts:
        raise DecodeError("a record of 0 bytes", offset=0)
    return memoryview(_MAGIC_BYTES.join(parts)) if len(parts) > 1 else memoryview(parts[0])


def _find_part_kind(number: int, last: bool) -> int:
    """Returns the kind that part `number` (from 0) of a record must have; `last` says whether it is the last one."""
    if number:
        return _LAST if last else _MIDDLE
    return _WHOLE if last else _FIRST


def _pad_stop(stop: int) -> int:
    return (stop + 3) & ~3


def _begins_record(head: memoryview) -> bool:
    magic, word = _PART.unpack(head)
    return magic == MAGIC and word >> _LENGTH_BITS in {_WHOLE, _FIRST}


def _edges(content: bytes, size: int) -> list[int]:
    """Returns the bytes at which records begin, and the length of the file, from the lines of an index file.

    A line is "number, tab, offset"; the lines may have any order. Raises ValueError for another content.
    """
    try:
        offsets = np.array([int(line.split()[1]) for line in content.splitlines() if line.strip()], np.int64)
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"a line is not 'number offset' ({error})") from error
    edges = np.append(np.sort(offsets), size)
    if edges[0] != 0 or (np.diff(edges) < _PART.size).any():
        raise ValueError("its offsets do not go from the first byte on, each once")
    found: list[int] = edges.tolist()
    return found
