"""Indexes an object with audio: finds out what kind of file it is, and cuts its windows into blocks.

The format `Audio` indexes with it (`format.py`), `recode.py` reads the hints of blocks, and `media/decode/audio.py`
reads whole files. The functions ask for bytes by `yield` (`formats/reading.py`), so there is no I/O here. A "sample"
here is a value of each channel at one time, and a window is a sample of the dataset.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise

import msgspec
import numpy as np

from streamer.formats.base import Answer, Block
from streamer.formats.failures import check_not_empty, make_refusal
from streamer.formats.reading import Range, Reading, join_near_ranges, read_range
from streamer.manifest.protocols import Source
from streamer.media.audio import flac, mp3, ogg
from streamer.media.audio.recordings import PackedFrames, Recording
from streamer.media.audio.tracks import read_track
from streamer.media.audio.wav import is_wav, read_wav
from streamer.media.audio.windows import WindowHeader, Windows, cut_parts, encode_head
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.movie import is_movie

# So many first bytes of an object say what kind of file it is.
HEAD_BYTES = 4096
# Most packets of a block, so that its hint has less than 64 KiB: a packet takes at most 2 bytes, or 5 where bytes of
# other tracks are between packets.
_MAX_PACKETS = 24_576
_MAX_BETWEEN_OTHERS = 10_240


class BlockNote(msgspec.Struct, frozen=True, array_like=True):
    """The hint of a block.

    Attributes:
        path: path of the object below the dataset's url.
        audio: how it is encoded.
        windows: the windows of the block.
        ranges: byte ranges of the object, half-open, that the block has.
        first: index of the first sample whose bytes begin with the first range.
        frames: the packets. None means that the recoder finds them in the bytes.
        played_at: when sample 0 is played, seconds.
    """

    path: str
    audio: TrackCodec
    windows: Windows
    ranges: tuple[Range, ...]
    first: int
    frames: PackedFrames | None = None
    played_at: float = 0.0

    @classmethod
    def write(cls, path: str, recording: Recording, windows: Windows, ranges: tuple[Range, ...]) -> BlockNote:
        """Returns the hint of a block of these windows, whose bytes are in these ranges of the object."""
        first = recording.sample_at(ranges[0][0])
        frames = recording.packets_in(ranges)
        return cls(
            path=path,
            audio=recording.audio,
            windows=windows,
            ranges=ranges,
            first=first,
            frames=frames,
            played_at=recording.played_at,
        )

    @property
    def fetch_bytes(self) -> int:
        """Bytes of the block: of all ranges together."""
        return sum(stop - start for start, stop in self.ranges)


def read_recording(source: Source, stream_index: int | None = None) -> Reading[Recording]:
    """Tells by its first bytes what a file is, and reads the parts of it that say where its samples are.

    Args:
        source: the object.
        stream_index: number of the track in files that have tracks. None means the first one with audio.

    Raises:
        ManifestError: the file is empty or damaged, has no such track, or windows are not cut out of such files.
    """
    record = source.record
    check_not_empty(record)
    head = yield from read_range(0, min(record.size, HEAD_BYTES), record)
    if is_wav(head):
        return (yield from read_wav(record, head))
    start = 0
    tagged = head
    # Some taggers put a tag of MP3 before FLAC.
    if 0 < (tag := mp3.tag_bytes(bytes(head[:10]))) < record.size:
        start = tag
        whole = start + 4 <= len(head)
        tagged = head[start:] if whole else (yield from read_range(start, min(record.size, start + HEAD_BYTES), record))
    if bytes(tagged[:4]) == flac.MAGIC:
        return (yield from flac.read_flac(record, tagged, start, source.chunk_bytes))
    if bytes(head[:4]) == ogg.MAGIC:
        return (yield from ogg.read_ogg(record, source.chunk_bytes))
    if is_movie(head):
        return (yield from read_track(record, head, stream_index))
    if mp3.is_mp3(head):
        return (yield from mp3.read_mp3(record))
    what = f"begins with {bytes(head[:4])!r}, which is none of the files that windows are cut out of"
    raise make_refusal(record, what, of_one=True)


def cut_blocks(source: Source, recording: Recording, windows: Windows) -> Generator[Block, Answer, None]:
    """Cuts the windows of a recording into blocks.

    Windows whose bytes begin in the same stretch of `source.chunk_bytes` are a block, or several if they have too many
    packets for one hint. There are no blocks without windows.

    Args:
        source: the object.
        recording: where its samples are.
        windows: all windows of the recording.

    Raises:
        ManifestError: there are more windows than the object has bytes.
    """
    if not windows.count:
        return
    if windows.count > source.record.size:
        what = f"has {recording.total} samples in its bytes, {windows.count} windows"
        raise make_refusal(source.record, what, of_one=True)
    lower, upper = recording.bounds(windows.starts, windows.stops)
    packets = recording.packets_before(lower)
    limit = _MAX_BETWEEN_OTHERS if recording.is_interleaved else _MAX_PACKETS
    stretch = (lower - lower[0]) // source.chunk_bytes + (packets - packets[0]) // limit
    cuts = [0, *(np.flatnonzero(np.diff(stretch)) + 1).tolist(), windows.count]
    for first, stop in pairwise(cuts):
        ranges = join_near_ranges(
            zip(lower[first:stop].tolist(), upper[first:stop].tolist(), strict=True), recording.near_bytes
        )
        begin, end, _ = cut_parts(lower[first:stop], upper[first:stop])
        note = BlockNote.write(source.key, recording, windows.part(first, stop), ranges)
        longest = WindowHeader(source.key, recording.audio, *[1 << 62] * 5)
        planned = (stop - first) * len(encode_head(longest)) + int((end - begin).sum())
        yield Block(ranges, stop - first, planned, msgspec.msgpack.encode(note), parts=len(begin), part_ranges=1)
