"""The packets of a whole film: mp4 and mov by their own index, other containers by FFmpeg."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import numpy as np

from streamer.formats.media.entries import Codec
from streamer.formats.media.frames import Frames
from streamer.formats.media.movie import VIDEO, is_movie, read_movie
from streamer.formats.media.tables import Packets
from streamer.formats.reading import read_in_memory
from streamer.manifest.model import ObjectRecord

_UNKNOWN_COLOUR = 2


class Film(msgspec.Struct, frozen=True):
    """Packets to decode.

    Attributes:
        codec: their parameters.
        packets: in the order stored.
        pts: of each packet, ticks.
        timescale: ticks of a second.
        gaps: numbers of the packets before which others are left out.
    """

    codec: Codec
    packets: Sequence[memoryview]
    pts: Sequence[int]
    timescale: int
    gaps: Sequence[int] = ()


def read_film(content: memoryview) -> tuple[Film, Frames]:
    """Finds packets and frames of a film.

    Raises:
        ValueError: it is not a film, or damaged.
    """
    return _own(content) if is_movie(content) else _demuxed(content)


def _own(content: memoryview) -> tuple[Film, Frames]:
    movie = read_in_memory(read_movie(ObjectRecord("", len(content), "")), content)
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
            if not isinstance(context, av.VideoCodecContext):
                raise ValueError(
                    "the FFmpeg of PyAV has no decoder of its film: its head is damaged, or its codec unknown"
                )
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
