"""Makes blocks of clips: which packets are fetched together, and the hint by which the recoder cuts records of them.

The indexes of `Video` (`media/video/format.py`) and of LeRobot (`media/lerobot/blocks.py`) make blocks. The recoder
reads the hint (`recode.py`), and so do estimates and packs of clips in `media/video/`. Hints of audio have columns of
the same form (`media/audio/recordings.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.manifest.blocks import LONGEST_HINT, Block
from streamer.media.containers.clips import FrameTable, Pattern, Samples
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.packet_checks import max_reorder
from streamer.media.containers.records import ClipAudioHeader, heads_bytes, part_bytes
from streamer.media.containers.tables import Integers, Packets

# Packets nearer to each other are one range: audio between them, 24 % of the bytes of an hour of video (2026-11-24),
# cost less than another request.
_NEAR_BYTES = 64 << 10
# A part is cut at this length, so a clip reads at most so much that it does not need. Where a clip ends, a part is cut
# from a quarter of this length on.
_PART_BYTES = 64 << 10
# The hint of so many packets has less than 64 KiB: 1.9 bytes a packet (2026-11-24), at most 4.
_MAX_PACKETS = 12_288
_MAX_EXTRA_BYTES = 64 << 20
# A hint has so many columns with a number for each packet, and with one for each sample.
_PACKET_COLUMNS = 5
_SAMPLE_COLUMNS = 3
_MAX_COLUMN_BYTES = 256 << 20


class ClipHint(msgspec.Struct, frozen=True, array_like=True):
    """The hint of a block: what the recoder needs besides the bytes.

    Attributes:
        key: path of the video.
        codec: codec parameters of the packets.
        timescale: number of ticks in a second.
        pattern: the frames of a clip, for clips that workers draw.
        counts: number of packets, of samples, of frames in the rows of all samples, and of numbers in all draws.
        columns: the columns of `Needed`, compressed; see `_encode_packets`.
        extra: the records of the rows in a table, compressed (see `Samples`), or b"" if there is no table.
        audio: an encoded `media.video.clip_audio.ClipAudioHint`, or b"" if clips have no audio.
    """

    key: str
    codec: TrackCodec
    timescale: int
    pattern: Pattern
    counts: tuple[int, int, int, int]
    columns: bytes
    extra: bytes = b""
    audio: bytes = b""


class TrackSound(Protocol):
    """The audio of the samples of a track: the interface of `ClipAudio` in `media.video.clip_audio`."""

    @property
    def head(self) -> ClipAudioHeader:
        """The fields about audio that the heads of all samples have in common."""
        ...

    def bytes_of(self, run: slice) -> tuple[Integers, Integers]:
        """Returns first bytes and lengths in the file of the audio that a run of samples needs."""
        ...

    def hint(self, run: slice, ranges: Sequence[tuple[int, int]]) -> tuple[bytes, int, int]:
        """Describes the audio of a run of samples for the recoder.

        Args:
            run: the samples.
            ranges: the ranges of the file that the block has.

        Returns:
            The hint, the number of pieces that the samples share, and their bytes.
        """
        ...


class Described(msgspec.Struct, frozen=True):
    """Facts about a track besides its packets.

    Attributes:
        key: path of the video.
        codecs: its codec parameters, by `Packets.entry`.
        timescale: number of ticks in a second.
        audio: the audio of its clips; None if they have none.
    """

    key: str
    codecs: Sequence[TrackCodec]
    timescale: int
    audio: TrackSound | None = None


class Needed(msgspec.Struct, frozen=True):
    """The packets that a block has, a row each, and its samples.

    Attributes:
        start: first byte of each packet in the bytes of the block.
        size, pts, duration, key: columns of `Packets` for these packets.
        first: place of the first packet of each sample among these.
        stop: place after the last packet of each sample.
        rows: places of the packets of the frames of each sample.
        draws: draws of `Samples`.
        behind_gap: whether each packet is a key and the packet before it in the file is not needed.
        extra: records of rows in a table, see `Samples`.
    """

    start: Integers
    size: Integers
    pts: Integers
    duration: Integers
    key: NDArray[np.bool_]
    first: Integers
    stop: Integers
    rows: list[Integers]
    draws: list[Integers]
    behind_gap: NDArray[np.bool_]
    extra: Sequence[bytes] = ()

    def parts(self) -> Integers:
        """Returns the first packets of the parts that clips share, closed by the number of packets.

        A part has packets of one GOP. It is cut where it is long, and, once it is not short, where a clip ends.
        """
        ends = frozenset(self.stop.tolist())
        key = self.key.tolist()
        firsts = list[int]()
        filled = 0
        for number, size in enumerate(self.size.tolist()):
            if not firsts or key[number] or filled > _PART_BYTES or (number in ends and filled > _PART_BYTES // 4):
                firsts.append(number)
                filled = 0
            filled += size
        return np.array([*firsts, len(self.size)], np.int64)


def cut_blocks(
    packets: Packets, frames: FrameTable, samples: Samples, described: Described, chunk_bytes: int
) -> Iterator[Block]:
    """Yields the blocks of a track: runs of samples with the same codec parameters, of about `chunk_bytes` or less.

    A block begins with the first packet of its first sample. Packets that samples of two blocks need are fetched with
    both.

    Args:
        packets: packets of the track.
        frames: frames of the track.
        samples: samples of the track.
        described: facts about the track.
        chunk_bytes: approximate length of a block in bytes.
    """
    ends = np.maximum.accumulate(packets.offset + packets.size).tolist()
    starts = samples.start.tolist()
    stops = samples.stop.tolist()
    first = 0
    furthest = 0
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        begin = starts[first]
        far = max(furthest, stop)
        full = ends[far - 1] - int(packets.offset[begin]) > chunk_bytes or far - begin > _MAX_PACKETS
        other = packets.entry[start] != packets.entry[begin]
        if number > first and (other or (full and start != starts[number - 1])):
            yield from _cut_run(
                packets=packets, frames=frames, samples=samples, run=slice(first, number), described=described
            )
            first = number
            far = stop
        furthest = far
    if starts:
        yield from _cut_run(
            packets=packets, frames=frames, samples=samples, run=slice(first, len(starts)), described=described
        )


def _cut_run(
    packets: Packets, frames: FrameTable, samples: Samples, run: slice, described: Described
) -> Iterator[Block]:
    """Yields the block of a run of samples, or of halves of it until their hints have at most `LONGEST_HINT` bytes."""
    block = block_of(packets=packets, frames=frames, samples=samples, run=run, described=described)
    if len(block.hint) > LONGEST_HINT and run.stop - run.start > 1:
        middle = (run.start + run.stop) // 2
        yield from _cut_run(
            packets=packets, frames=frames, samples=samples, run=slice(run.start, middle), described=described
        )
        yield from _cut_run(
            packets=packets, frames=frames, samples=samples, run=slice(middle, run.stop), described=described
        )
    else:
        yield block


def block_of(packets: Packets, frames: FrameTable, samples: Samples, run: slice, described: Described) -> Block:
    """Returns the block of a run of samples, whatever its length.

    Args:
        packets: packets of the track.
        frames: frames of the track.
        samples: samples of the track.
        run: the samples of the block. The packets of all have the same codec parameters.
        described: facts about the track.
    """
    first = samples.start[run]
    stop = samples.stop[run]
    base = int(first.min())
    codec = described.codecs[int(packets.entry[base])]
    which = _find_packets(
        packets=packets,
        frames=frames,
        rows=samples.rows[run],
        base=base,
        ahead=max_reorder(codec) if frames.ascends else 0,
    )
    place = np.full(int(which[-1]) + 1 - base, -1, np.int64)
    place[which - base] = np.arange(len(which))
    behind_gap = packets.key[which] & (np.diff(which, prepend=which[:1] - 1) > 1)
    audio = described.audio
    beside = audio.bytes_of(run) if audio else (np.empty(0, np.int64), np.empty(0, np.int64))
    ranges, starts = _ranges(packets.offset[which], packets.size[which], beside)
    # Packets that are not shown have the duration 0.
    duration = np.zeros(len(packets), np.int64)
    duration[frames.packet] = frames.duration
    needed = Needed(
        start=starts, size=packets.size[which], pts=packets.pts[which], duration=duration[which],
        key=packets.key[which],
        first=place[first - base], stop=place[stop - 1 - base] + 1,
        rows=[place[frames.packet[row] - base] for row in samples.rows[run]], draws=samples.draws[run],
        behind_gap=behind_gap, extra=samples.extra[run],
    )  # fmt: skip
    key = described.key
    extra = zlib.compress(msgspec.msgpack.encode(needed.extra)) if needed.extra else b""
    audio_hint, audio_parts, audio_bytes = audio.hint(run, ranges) if audio else (b"", 0, 0)
    hint = ClipHint(key, codec, described.timescale, samples.pattern, *_encode_packets(needed), extra, audio_hint)
    cuts = needed.parts()
    numbers = sum(map(len, needed.rows)) + sum(map(len, needed.draws))
    heads = heads_bytes(key, len(needed.rows), numbers, audio.head if audio else None)
    heads += sum(map(len, needed.extra)) + audio_bytes
    record_bytes = heads + sum(
        part_bytes(int(stop - start), codec if needed.key[start] else None)
        for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    )
    return Block(
        ranges,
        len(needed.rows),
        record_bytes + int(needed.size.sum()),
        msgspec.msgpack.encode(hint),
        parts=len(cuts) - 1 + audio_parts,
        part_ranges=2 if audio else 1,
        left_out=0 if run.start else samples.left_out,
    )


def _find_packets(packets: Packets, frames: FrameTable, rows: Sequence[Integers], base: int, ahead: int) -> Integers:
    """Returns the packets that samples need: for each frame those from its key packet to its own.

    Packets between two frames of a sample are needed too, unless a whole GOP is between them.

    Args:
        packets: packets of the track.
        frames: frames of the track.
        rows: frames of each sample.
        base: number of the first packet of the samples.
        ahead: number of packets after each frame that are needed too, for the recoder to see whether frames are
            reordered.
    """
    flat = np.concatenate(rows)
    others = np.flatnonzero(packets.entry[base:] != packets.entry[base])
    end = int(others[0]) if len(others) else len(packets) - base
    start = frames.start[flat] - base
    stop = np.minimum(frames.packet[flat] + 1 - base + ahead, end)
    gop = np.cumsum(packets.key[base : base + int(stop.max())])
    near = np.less_equal(gop[start[1:]] - gop[stop[:-1] - 1], 1)
    near[np.cumsum(list(map(len, rows)))[:-1] - 1] = False
    start[1:][near] = np.minimum(start[1:], stop[:-1])[near]
    edges = np.zeros(int(stop.max()) + 1, np.int64)
    np.add.at(edges, start, 1)
    np.add.at(edges, stop, -1)
    found: Integers = np.flatnonzero(np.cumsum(edges)[:-1]) + base
    return found


def _ranges(
    offset: Integers, size: Integers, beside: tuple[Integers, Integers]
) -> tuple[tuple[tuple[int, int], ...], Integers]:
    """Joins packets, and the audio beside them, to ranges of the file.

    Args:
        offset: first byte of each packet.
        size: bytes of each packet.
        beside: first bytes and lengths of the audio that is fetched with them.

    Returns:
        The half-open ranges, and the first byte of each packet in the joined bytes of the ranges.
    """
    places = np.append(offset, beside[0])
    sizes = np.append(size, beside[1])
    order = np.argsort(places, kind="stable")
    lower = places[order]
    upper = np.maximum.accumulate((places + sizes)[order])
    cuts = np.flatnonzero(lower[1:] > upper[:-1] + _NEAR_BYTES) + 1
    begins = lower[np.append(0, cuts)]
    stops = upper[np.append(cuts, len(order)) - 1]
    lengths = stops - begins
    which = np.searchsorted(begins, offset, "right") - 1
    starts = (np.cumsum(lengths) - lengths)[which] + offset - begins[which]
    return tuple(zip(begins.tolist(), stops.tolist(), strict=True)), starts


def _encode_packets(needed: Needed) -> tuple[tuple[int, int, int, int], bytes]:
    """Returns `counts` and `columns` of a `ClipHint`.

    The columns have for each packet the bytes between it and the one before it, size, pts, duration, and key and gap in
    one number. For each sample they have its first packet, the one after its last, and the number of its frames. Then
    come the packets of all frames, and all draws. Ascending columns have differences.
    """
    gaps = needed.start - np.append(0, (needed.start + needed.size)[:-1])
    lengths = np.array(list(map(len, needed.rows)))
    drawn = np.concatenate(needed.draws).ravel() if needed.draws else np.empty(0, np.int64)
    flat = np.concatenate(needed.rows)
    columns = [gaps, needed.size, _steps(needed.pts), needed.duration, needed.key + 2 * needed.behind_gap]
    columns += [_steps(needed.first), _steps(needed.stop), lengths, _steps(flat), drawn]
    return (len(gaps), len(lengths), len(flat), len(drawn)), pack_columns(columns)


def _steps(column: Integers) -> Integers:
    return np.diff(column, prepend=0)


def read_hint(content: bytes) -> tuple[ClipHint, Needed]:
    """Reads the hint of a block, and returns it with its columns.

    Raises:
        ValueError, msgspec.MsgspecError: the index did not write it.
    """
    hint = msgspec.msgpack.decode(content, type=ClipHint)
    packets, samples, in_rows, drawn = hint.counts
    lengths = [packets] * _PACKET_COLUMNS + [samples] * _SAMPLE_COLUMNS + [in_rows, drawn]
    gaps, size, pts, duration, key, first, stop, row_lengths, flat, draws = unpack_columns(hint.columns, lengths)
    first = np.cumsum(first)
    stop = np.cumsum(stop)
    flat = np.cumsum(flat)
    if not len(first) or not packets or (size < 0).any() or (row_lengths <= 0).any() or row_lengths.sum() != in_rows:
        raise ValueError("a hint whose columns contradict each other")
    if first.min() < 0 or (first >= stop).any() or stop.max() > packets or flat.min() < 0 or flat.max() >= packets:
        raise ValueError(f"a hint whose samples are not in its {packets} packets")
    rows = np.split(flat, np.cumsum(row_lengths)[:-1])
    starts = np.cumsum(gaps + np.append(0, size[:-1]))
    drawn_rows = list(draws.reshape(samples, -1, 2)) if drawn else []
    extra: list[bytes] = []
    if hint.extra:
        try:
            raw = zlib.decompressobj().decompress(hint.extra, _MAX_EXTRA_BYTES)
        except zlib.error as error:
            raise ValueError(f"the rows of a hint are damaged: {error}") from error
        extra = msgspec.msgpack.decode(raw, type=list[bytes])
        if len(extra) != samples:
            raise ValueError(f"a hint of {samples} samples has {len(extra)} rows of a table")
    # The column has 1 for keys, and 2 more for those behind a gap.
    times = np.cumsum(pts)
    return hint, Needed(
        start=starts,
        size=size,
        pts=times,
        duration=duration,
        key=key > 0,
        first=first,
        stop=stop,
        rows=rows,
        draws=drawn_rows,
        behind_gap=key > 1,
        extra=extra,
    )


def pack_columns(columns: Sequence[NDArray[np.int64]]) -> bytes:
    """Returns columns as compressed bytes, which `unpack_columns` reads."""
    # The lowest bytes of all numbers come first, then the next ones: so compressed columns have a third of the length.
    raw = b"".join(column.astype("<i8").view("u1").reshape(-1, 8).T.tobytes() for column in columns)
    return zlib.compress(raw, 6)


def unpack_columns(content: bytes, lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Returns the columns that `pack_columns` wrote; raises ValueError for other lengths and damaged or huge ones."""
    total = 8 * sum(lengths)
    if min(lengths) < 0 or total > _MAX_COLUMN_BYTES:
        raise ValueError(f"a hint of columns of {lengths}")
    try:
        raw = zlib.decompressobj().decompress(content, total + 1)
    except zlib.error as error:
        raise ValueError(f"the columns of a hint are damaged: {error}") from error
    if len(raw) != total:
        raise ValueError(f"a hint of columns of {lengths} has {len(raw)} bytes")
    columns = list[NDArray[np.int64]]()
    at = 0
    for length in lengths:
        column = np.frombuffer(raw, "u1", 8 * length, at).reshape(8, length).T.copy().view("<i8").reshape(length)
        columns.append(column)
        at += 8 * length
    return columns
