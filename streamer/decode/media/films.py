"""The packets of a whole film: mp4 and mov by their own index, other containers by FFmpeg."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import numpy as np

from streamer.formats.media.entries import Codec
from streamer.formats.media.frames import Frames
from streamer.formats.media.movie import VIDEO, read_movie
from streamer.formats.media.tables import Packets
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Answer, Need

# Behind their length, at the beginning of mp4 and mov.
_OWN = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
_UNKNOWN_COLOUR = 2


class Film(msgspec.Struct, frozen=True):
    """Packets to decode.

    Attributes:
        codec: their parameters.
        packets: in the order stored.
        pts: of each packet, ticks.
        timescale: ticks of a second.
    """

    codec: Codec
    packets: Sequence[memoryview]
    pts: Sequence[int]
    timescale: int


def read_film(content: memoryview) -> tuple[Film, Frames]:
    """Finds packets and frames of a film.

    Raises:
        ValueError: it is no film, or damaged.
    """
    return _own(content) if bytes(content[4:8]) in _OWN else _demuxed(content)


def _own(content: memoryview) -> tuple[Film, Frames]:
    steps = read_movie(ObjectRecord("", len(content), ""))
    answer: Answer = None
    while True:
        try:
            need = steps.send(answer)
        except StopIteration as end:
            movie = end.value
            break
        if isinstance(need, Need):
            answer = content[need.start : need.stop]
        else:
            answer = tuple(content[each.start : each.stop] for each in need)
    track = movie.track(VIDEO)
    packets = movie.packets(track)
    edges = zip(packets.offset.tolist(), (packets.offset + packets.size).tolist(), strict=True)
    views = [content[start:stop] for start, stop in edges]
    return Film(track.codec(), views, packets.pts.tolist(), track.timescale), Frames.of(packets)


def _demuxed(content: memoryview) -> tuple[Film, Frames]:
    import av

    try:
        with av.open(io.BytesIO(content), "r") as box:
            stream = box.streams.best("video")
            if stream is None:
                raise ValueError("it has no film")
            found = [packet for packet in box.demux(stream) if packet.size]
            context, base = stream.codec_context, stream.time_base
            assert isinstance(context, av.VideoCodecContext)
            colour = (context.color_primaries, context.color_trc, context.colorspace, context.color_range == 2)
            known = colour if set(colour[:3]) != {_UNKNOWN_COLOUR} else None
            codec = Codec(context.codec.name, context.extradata or b"", context.width, context.height, colour=known)
    except av.FFmpegError as error:
        raise ValueError(f"FFmpeg: {error}") from error
    if base is None:
        raise ValueError("its times have no unit")
    # Ticks of a whole number of a second.
    pts = np.array([packet.pts if packet.pts is not None else packet.dts or 0 for packet in found]) * base.numerator
    duration = np.array([packet.duration or 0 for packet in found]) * base.numerator
    key = np.array([packet.is_keyframe for packet in found])
    shown = np.array([not packet.is_discard for packet in found])
    packets = Packets(pts, pts, pts, duration, key, shown, pts)
    return Film(codec, [memoryview(packet) for packet in found], pts.tolist(), base.denominator), Frames.of(packets)
