"""Compressed files of a plain format: one block each, whose records are the samples of the unpacked file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamer.errors import ManifestError, RecodeError
from streamer.formats.base import Answer, Block, Facts, Format, Records
from streamer.formats.failures import check_filled, refused
from streamer.formats.packed.unpack import UNPACKERS, UnpackError, unpack
from streamer.manifest.blocks import MOST_FETCH_BYTES, MOST_RECORD_BYTES
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Examine, Examined, Indexing, Need, Note, Source, Span

# Packings by the ending of the name.
ENDINGS = {
    **{f".{packing}": packing for packing in UNPACKERS},
    ".gzip": "gz",
    ".zstd": "zst",
    ".tgz": "gz",
    ".tzst": "zst",
    ".tbz": "bz2",
    ".tbz2": "bz2",
    ".txz": "xz",
}


def is_packed(name: str) -> bool:
    """Whether a file of this name is compressed as a whole, in a way that is read."""
    return name.lower().endswith(tuple(ENDINGS))


def packing_of(name: str) -> str:
    """Returns how a file of this name is compressed, which `is_packed` has told."""
    return next(packing for ending, packing in ENDINGS.items() if name.lower().endswith(ending))


def index_packed(inner: Format, source: Source, facts: Facts) -> Indexing:
    """Finds one block, the whole file, whose samples a recoder counts by the inner format.

    Raises:
        ManifestError: the file is empty, too large, damaged, or not of the inner format.
    """
    record = source.record
    if record.size > MOST_FETCH_BYTES:
        raise refused(
            record,
            f"is one compressed stream of {record.size} bytes, of which at most {MOST_FETCH_BYTES} can be read: its "
            "samples are reached by unpacking it from its beginning; unpack it, or pack it as several files",
        )
    check_filled(record)
    packing = packing_of(record.url).encode()
    found = yield Examine(record, inner.name, inner.options, facts, packing)
    assert isinstance(found, Examined)
    if found.samples:
        yield Block(((0, record.size),), found.samples, found.record_bytes, packing)


class PackedRecoder:
    """Unpacks files of the format `inner`, and makes records of their samples. See `base.Recoder`."""

    def __init__(self, inner: Format, facts: Facts) -> None:
        self._inner = inner
        self._facts = facts

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of the samples of one file."""
        packing = hint.decode("ascii", "replace")
        if packing not in UNPACKERS:
            raise RecodeError(f"no compression {packing[:20]!r} is known")
        try:
            unpacked = unpack(packing, content, MOST_RECORD_BYTES)
            spans = np.array(list(self._spans(unpacked, is_index=samples == -1)), np.int64).reshape(-1, 2)
        except UnpackError as error:
            raise RecodeError(f"{error}; unpack it, or pack it as several files") from error
        except ManifestError as error:
            raise RecodeError(f"unpacked, {error.details.get('reason', error.message)}") from error
        if samples not in (-1, len(spans)):
            raise RecodeError(f"it has {len(spans)} samples, {samples} were indexed")
        starts = spans[:, 0]
        stops = spans[:, 1]
        # Spans that follow one another are one part; without spans there is none.
        apart = starts[1:] != stops[:-1]
        runs = np.flatnonzero(np.append(True, apart)[: len(spans)])
        ends = np.flatnonzero(np.append(apart, True)[: len(spans)])
        parts = [unpacked[a:b] for a, b in zip(starts[runs].tolist(), stops[ends].tolist(), strict=True)]
        return Records(parts, stops - starts)

    def _spans(self, unpacked: memoryview, *, is_index: bool) -> Iterator[tuple[int, int]]:
        """Yields the samples, as the inner format finds them.

        A recoder has no way to say a line: an index refuses what it would be about.
        """
        if not unpacked:
            return
        # The names of objects say how they are packed: this one has none.
        record = ObjectRecord("the file", len(unpacked), "")
        steps = self._inner.index(Source(record), self._facts)
        answer: Answer = None
        while True:
            try:
                item = steps.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(item, Span):
                yield item.start, item.stop
            elif isinstance(item, Need):
                answer = unpacked[item.start : item.stop]
            elif isinstance(item, Note):
                if is_index:
                    raise RecodeError(f"{item.count} {item.what} (the first is {item.example})")
            else:
                raise RecodeError(f"format {self._inner.name!r} does not read its samples alone")
