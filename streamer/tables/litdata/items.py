"""Opens LitData's items, and unpacks them where they are compressed together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import msgspec
import numpy as np

from streamer.errors import DecodeError, RecodeError
from streamer.formats.base import Field, FieldSpec, Records, SampleName
from streamer.formats.packed.unpack import MOST_ITEM_BYTES, unpack, unpack_shard
from streamer.tables.index_json import LengthsOpener, head_bytes, read_offsets
from streamer.tables.litdata.arrow_chunks import ARROW_END
from streamer.tables.litdata.frames import Run

_RUN = msgspec.msgpack.Decoder(Run)
# Items, and bytes before they were compressed.
_CHUNK = msgspec.json.Decoder(tuple[int, int])


class ItemOpener(LengthsOpener):
    """Splits items into leaves; a `whole` item is its only leaf, without a length, a `packed` one is compressed."""

    def __init__(self, fields: Sequence[FieldSpec], *, whole: bool, packed: bool) -> None:
        super().__init__(fields, [0] * len(fields), "an item of LitData")
        self._whole = whole
        self._packed = packed

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns the leaves in their order; an item has no key."""
        if self._packed:
            try:
                content = unpack("zst", content, MOST_ITEM_BYTES)
            except ValueError as error:
                raise DecodeError(f"not a packed item of LitData: {error}") from error
        if self._whole:
            return None, [Field(field, content, kind) for field, kind, _ in self._fields]
        return super().open(content, name)


class ItemRecoder:
    """Unpacks whole chunks, and cuts tokens into samples of `sample_bytes`; 0: samples are items."""

    def __init__(self, sample_bytes: int) -> None:
        self._sample_bytes = sample_bytes

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of a chunk."""
        try:
            items, raw_bytes = _CHUNK.decode(hint)
            chunk = unpack_shard("zstd", content, raw_bytes)
            offsets = read_offsets(chunk, items, len(chunk), behind=chunk[-len(ARROW_END) :] == ARROW_END)
        except ValueError as error:
            raise RecodeError(f"not the chunk that its index.json describes: {error}") from error
        if not self._sample_bytes:
            return Records([chunk[offsets[0] : offsets[-1]]], offsets[1:] - offsets[:-1])
        first = head_bytes(items)
        used = samples * self._sample_bytes
        if first + used > len(chunk):
            raise RecodeError(f"{samples} samples of {self._sample_bytes} bytes in a chunk of {len(chunk)}")
        return Records([chunk[first : first + used]], np.full(samples, self._sample_bytes, np.int64))


class RunRecoder:
    """Unpacks runs of items; before them are the starts of the items."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of a run."""
        table = 4 * (samples + 1)
        try:
            run = _RUN.decode(hint)
            offsets = np.frombuffer(content, "<u4", samples + 1).astype(np.int64)
            lengths = offsets[1:] - offsets[:-1]
            places = list(accumulate(run.packed, initial=table))
            if places[-1] != len(content) or lengths.sum() != sum(run.unpacked) or (lengths < 0).any():
                raise ValueError(f"{len(content)} bytes are not {len(run.packed)} frames of {samples} items")
            pieces = [content[start:stop] for start, stop in pairwise(places)]
            parts = [unpack_shard("zstd", piece, length) for piece, length in zip(pieces, run.unpacked, strict=True)]
        except ValueError as error:
            raise RecodeError(f"not the frames that the chunk's table describes: {error}") from error
        return Records(parts, lengths)
