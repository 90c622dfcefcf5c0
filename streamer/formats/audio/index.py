"""Finds the windows of an object: what kind of file it is, and the blocks of its windows. No I/O."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise

import msgspec
import numpy as np

from streamer.formats.audio import flac, mp3, ogg
from streamer.formats.audio.sounds import Head, Recording, encode_head
from streamer.formats.audio.wav import is_wav, read_wav
from streamer.formats.audio.windows import Windows, shared_parts
from streamer.formats.base import Answer, Block
from streamer.formats.failures import check_filled, refused
from streamer.formats.media.entries import Codec
from streamer.formats.reading import Range, Reading, read_range
from streamer.manifest.protocols import Source

HEAD_BYTES = 4096


class BlockNote(msgspec.Struct, frozen=True, array_like=True):
    """The hint of a block.

    Attributes:
        path: of the object below the dataset's url.
        sound: how it is encoded.
        windows: of the block.
        ranges: of the object's bytes.
        first: number of the sample with which the first range begins.
    """

    path: str
    sound: Codec
    windows: Windows
    ranges: tuple[Range, ...]
    first: int

    @property
    def fetch_bytes(self) -> int:
        """Bytes of the block."""
        return sum(stop - start for start, stop in self.ranges)


def read_recording(source: Source) -> Reading[Recording]:
    """Tells by its first bytes what a file is, and reads what says where its samples are; raises ManifestError."""
    record = source.record
    check_filled(record)
    head = yield from read_range(0, min(record.size, HEAD_BYTES), record)
    if is_wav(head):
        return (yield from read_wav(record, head))
    if bytes(head[:4]) == flac.MAGIC:
        return (yield from flac.read_flac(record, head, source.chunk_bytes))
    if bytes(head[:4]) == ogg.MAGIC:
        return (yield from ogg.read_opus(record, source.chunk_bytes))
    if mp3.is_mp3(head):
        return (yield from mp3.read_mp3(record))
    raise refused(record, f"begins with {bytes(head[:4])!r}, which is none of the files that windows are cut out of")


def cut_blocks(source: Source, recording: Recording, windows: Windows) -> Generator[Block, Answer, None]:
    """Yields the windows whose bytes begin in one stretch of `chunk_bytes` as one block."""
    if not windows.count:
        return
    if windows.count > source.record.size:
        raise refused(source.record, f"has {recording.total} samples in its bytes, {windows.count} windows")
    lower, upper = recording.bounds(windows.starts, windows.stops)
    stretch = (lower - lower[0]) // source.chunk_bytes
    cuts = [0, *(np.flatnonzero(np.diff(stretch)) + 1).tolist(), windows.count]
    for first, stop in pairwise(cuts):
        ranges = _ranges(lower[first:stop].tolist(), upper[first:stop].tolist(), recording.near_bytes)
        begin, end, _ = shared_parts(lower[first:stop], upper[first:stop])
        note = BlockNote(
            source.key, recording.sound, windows.part(first, stop), ranges, recording.sample_at(ranges[0][0])
        )
        longest = Head(source.key, recording.sound, 1 << 62, 1 << 62, 1 << 62, windows.length)
        planned = (stop - first) * len(encode_head(longest)) + int((end - begin).sum())
        yield Block(ranges, stop - first, planned, msgspec.msgpack.encode(note), parts=len(begin), part_ranges=1)


def _ranges(lower: list[int], upper: list[int], near_bytes: int) -> tuple[Range, ...]:
    """Joins the bytes of windows that overlap, or have less than `near_bytes` between them."""
    joined: list[Range] = []
    for start, stop in zip(lower, upper, strict=True):
        if joined and start - joined[-1][1] < near_bytes:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)
