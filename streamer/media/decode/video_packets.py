"""Videos to decode: packets, and what a decoder has to be told.

Those of whole mp4 and mov are read by their own index; those of other containers, and of what is not read of those, by
FFmpeg.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from streamer.formats.reading import read_in_memory
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.clips import FrameTable
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.movie import VIDEO, read_movie
from streamer.media.containers.packet_checks import max_reorder, shows_out_of_order
from streamer.media.containers.tables import Packets
from streamer.media.decode.decoder import (
    MAX_SECONDS,
    Deadline,
    LimitedReader,
    check_library,
    context_of,
    limit,
    packet_of,
)

if TYPE_CHECKING:
    from av import Packet, VideoCodecContext, VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

# FFmpeg's demuxers of files that are whole by themselves: others open ports and further files, or guess frames.
_READ = (
    "aac,ac3,ac4,aiff,amr,amrnb,amrwb,ape,apng,asf,au,av1,avi,avr,avs2,avs3,bink,caf,cavsvideo,"
    "dirac,dnxhd,dsf,dts,dtshd,dv,eac3,flac,flic,flv,gif,gsm,gxf,h261,h263,h264,hevc,iff,ircam,"
    "ivf,loas,m4v,matroska,mjpeg,mlp,mov,mp3,mpc,mpc8,mpeg,mpegts,mpegvideo,mxf,nistsphere,nsv,"
    "nut,nuv,obu,ogg,oma,pva,pvf,qcp,rm,shn,smjpeg,smk,sox,swf,tak,truehd,tta,vc1,voc,vvc,"
    "w64,wav,webm,wtv,wv,xwma,yuv4mpegpipe"
)
# These containers store when each frame is shown. FFmpeg guesses it for others, and wrongly where frames are reordered.
_TIMED = frozenset(["flv", "gif", "ivf", "matroska", "mpegts", "mxf", "nut", "ogg", "webm", "wtv"])
# Frames of a video whose order is only known when it is decoded are kept up to so much; others are decoded once more.
_MAX_KEPT_BYTES = 128 << 20
# AV_CODEC_PROP_REORDER: frames may be stored in another order than shown.
_REORDER = 1 << 3
_USUAL_RATE = 25


class DisorderError(ValueError):
    """Raised where frames are shown in another order than the times of their packets say."""


class VideoPackets(msgspec.Struct, frozen=True):
    """Packets to decode.

    Attributes:
        codec: their parameters.
        packets: in the order stored.
        pts: of each packet, ticks.
        timescale: ticks of a second.
        gaps: numbers of the packets before which others are left out.
        stored: the packets as FFmpeg's demuxer gives them, with what is beside their bytes.
        open: opens a context that has decoded nothing; None: one of `codec`.
        play: decodes the frames of these times without `packets`, from the beginning of the file on.
        deadline: Limit of the time for decoding.
    """

    codec: TrackCodec
    packets: Sequence[memoryview]
    pts: Sequence[int]
    timescale: int
    gaps: Sequence[int] = ()
    stored: Sequence[Packet[Any]] = ()
    open: Callable[[], VideoCodecContext] | None = None
    play: Callable[[Collection[int]], dict[int, VideoFrame]] | None = None
    deadline: Deadline = msgspec.field(default_factory=Deadline)

    def piece(self, first: int, stop: int) -> VideoPackets:
        """Returns the video of the packets `[first, stop)`."""
        return msgspec.structs.replace(
            self, packets=self.packets[first:stop], pts=self.pts[first:stop], stored=self.stored[first:stop]
        )

    def context(self) -> VideoCodecContext:
        """Opens a context that has decoded nothing; raises ValueError if it is one of audio."""
        import av

        context = self.open() if self.open else context_of(self.codec)
        if not isinstance(context, av.VideoCodecContext):
            raise ValueError(f"{self.codec.name} is an audio codec")
        return context

    def rotation(self, frame: VideoFrame) -> int:
        """Returns the degrees counterclockwise by which a frame is turned: 0, 90, 180, 270."""
        if not self.open and not self.play:
            return self.codec.rotation
        return 0 if frame.rotation % 90 else frame.rotation % 360

    def packet(self, number: int) -> Packet[Any]:
        """Returns a packet for a context."""
        return self.stored[number] if self.stored else packet_of(self.packets[number])


def read_mp4(content: memoryview) -> tuple[VideoPackets, FrameTable, bool]:
    """Finds packets and frames of a whole mp4 or mov, and whether all of them can be shown at these times.

    Raises:
        UnreadError: it is of a kind that is not read.
        DamagedError: its boxes contradict each other.
    """
    movie = read_in_memory(read_movie(ObjectRecord("", len(content), "")), content)
    track = movie.track(VIDEO)
    packets, timescale = movie.packets(track).separate_times(track.timescale)
    edges = zip(packets.offset.tolist(), (packets.offset + packets.size).tolist(), strict=True)
    views = [content[start:stop] for start, stop in edges]
    entries = np.unique(packets.entry)
    video = VideoPackets(track.codec(int(entries[0]) if len(entries) else 0), views, packets.pts.tolist(), timescale)
    frames = FrameTable.from_packets(packets)
    is_whole = len(frames) == int((packets.shown & (packets.size > 0)).sum())
    is_timed = not (frames.ascends and max_reorder(video.codec) and shows_out_of_order(views, video.codec))
    # Parameters that change in the middle are those of packets from there on alone.
    return video, frames, is_whole and is_timed and len(entries) <= 1


class _Opened(msgspec.Struct):
    """A container, its video, and the packets of this that are not empty."""

    box: InputContainer
    stream: VideoStream
    packets: Sequence[Packet[Any]]


class _Played(msgspec.Struct):
    """Frames of a video by their places in a full decode.

    Attributes:
        content: the file.
        places: of each frame, by its time.
        frames: those that are decoded already, from the first one on.
        deadline: Limit of the time for decoding.
    """

    content: memoryview
    places: dict[int, int]
    frames: list[VideoFrame]
    deadline: Deadline

    def find(self, wanted: Collection[int]) -> dict[int, VideoFrame]:
        """Finds the frames of these times."""
        times = {self.places[time]: time for time in wanted}
        last = max(times)
        frames = (
            self.frames if last < len(self.frames) else _decode_all(_open(self.content, self.deadline), self.deadline)
        )
        return {times[place]: frame for place, frame in enumerate(islice(frames, last + 1)) if place in times}


def open_container(content: memoryview, deadline: Deadline) -> InputContainer:
    """Opens a file that is whole by itself with FFmpeg; nothing else is opened for it.

    Args:
        content: Bytes of the file.
        deadline: Limit of the time for reading it.

    Raises:
        ConfigError: PyAV is not installed.
        ValueError: it is of another container.
        av.FFmpegError: it is damaged.
    """
    check_library()
    import av

    options = {"format_whitelist": _READ, "protocol_whitelist": ""}
    try:
        # FFmpeg looks at the first frames, for as long at most.
        return av.open(LimitedReader(content, deadline), "r", container_options=options, timeout=(MAX_SECONDS, None))
    except av.FFmpegError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ValueError(f"it is none of the containers that are read: {_READ.replace(',', ', ')}") from error


def read_container(
    content: memoryview, deadline: Deadline, *, by_number: bool = False
) -> tuple[VideoPackets, FrameTable]:
    """Finds packets and frames of a video, by the times that are stored, or by their numbers in a full decode.

    Args:
        content: the file.
        deadline: Limit of the time for decoding.
        by_number: whether times are not to be believed.

    Raises:
        ValueError: it is not a video, or damaged.
    """
    import av

    try:
        opened = _open(content, deadline)
        pts = [packet.pts for packet in opened.packets]
        names = frozenset(opened.box.format.name.split(","))
        is_reordered = bool(opened.stream.codec_context.codec.properties & _REORDER)
        is_timed = not is_reordered or not names.isdisjoint(_TIMED)
        # Frames behind another palette or other parameters are decoded with them, though packets from a key frame on
        # do not have them.
        is_timed = is_timed and not any(map(_brings_parameters, opened.packets[1:]))
        if by_number or not is_timed or None in pts or len(set(pts)) < len(pts):
            return _read_by_number(content, opened, deadline)
        video, frames = _read_by_times(content, opened, deadline)
        if len(frames) < sum(not packet.is_discard for packet in opened.packets):
            # It begins between key frames, or with frames of an open GOP, of which some may be shown.
            return _read_by_number(content, _open(content, deadline), deadline)
        return video, frames
    except av.FFmpegError as error:
        raise ValueError(f"FFmpeg: {error}") from error


def _brings_parameters(packet: Packet[Any]) -> bool:
    # PyAV before 16 does not say it.
    has = getattr(packet, "has_sidedata", None)
    return has is not None and any(map(has, ("palette", "new_extradata")))


def _open(content: memoryview, deadline: Deadline) -> _Opened:
    import av
    from av.stream import Disposition

    box = open_container(content, deadline)
    stream = box.streams.best("video")
    if stream is None:
        raise ValueError("it has no video")
    if not isinstance(stream.codec_context, av.VideoCodecContext):
        raise ValueError("the FFmpeg of PyAV has no decoder of its video: its head is damaged, or its codec unknown")
    if stream.disposition & Disposition.attached_pic:
        raise ValueError("it has no video, but a cover")
    limit(stream.codec_context)
    assert isinstance(stream, av.video.stream.VideoStream)
    packets = []
    for packet in box.demux(stream):
        deadline.check()
        if packet.size:
            packets.append(packet)
    return _Opened(box, stream, packets)


def _read_by_times(content: memoryview, opened: _Opened, deadline: Deadline) -> tuple[VideoPackets, FrameTable]:
    stream = opened.stream
    found = opened.packets
    context = opened.stream.codec_context
    if (base := stream.time_base) is None:
        raise ValueError("its times have no unit")
    codec = TrackCodec(context.codec.name, context.extradata or b"", context.width, context.height)
    # Ticks of a whole number of a second.
    pts = np.array([packet.pts for packet in found], np.int64) * base.numerator
    duration = np.array([packet.duration or 0 for packet in found], np.int64) * base.numerator
    key = np.array([packet.is_keyframe for packet in found], bool)
    shown = np.array([not packet.is_discard for packet in found], bool)
    size = np.array([packet.size for packet in found], np.int64)
    # FFmpeg keeps the bytes of the packets: they have no place in the file, and one set of codec parameters.
    nothing = np.zeros_like(pts)
    packets = Packets(offset=nothing, size=size, pts=pts, duration=duration, key=key, shown=shown, entry=nothing)
    video = VideoPackets(
        codec,
        [memoryview(packet) for packet in found],
        pts.tolist(),
        base.denominator,
        stored=found,
        open=_Contexts(content, context, deadline),
        deadline=deadline,
    )
    return video, FrameTable.from_packets(packets)


class _Contexts:
    """Contexts with all that a container says of its video: codec tag, bits of a pixel, palette; each used once."""

    def __init__(self, content: memoryview, first: VideoCodecContext, deadline: Deadline) -> None:
        self._content = content
        self._deadline = deadline
        self._first: VideoCodecContext | None = first

    def __call__(self) -> VideoCodecContext:
        found, self._first = self._first, None
        return found if found is not None else _open(self._content, self._deadline).stream.codec_context


def _read_by_number(content: memoryview, opened: _Opened, deadline: Deadline) -> tuple[VideoPackets, FrameTable]:
    """Decodes the whole video, which alone says in which order its frames are shown, and how many there are."""
    stream = opened.stream
    name = opened.stream.codec_context.codec.name
    kept = list["VideoFrame"]()
    kept_bytes = 0
    count = 0
    for frame in _decode_all(opened, deadline):
        if kept_bytes < _MAX_KEPT_BYTES:
            kept.append(frame)
            kept_bytes += sum(plane.buffer_size for plane in frame.planes)
        count += 1
    # Frames are shown at the times of decoding, in another order.
    times = sorted({packet.dts for packet in opened.packets if packet.dts is not None})
    base = stream.time_base
    rate = Fraction(stream.average_rate or stream.guessed_rate or _USUAL_RATE)
    if base is not None and len(times) == count:
        pts = np.array(times, np.int64) * base.numerator
        timescale = base.denominator
    else:
        pts = np.arange(count) * rate.denominator
        timescale = rate.numerator
    usual = max(1, round(timescale / rate))
    place = np.arange(count)
    frames = FrameTable(place, pts, np.diff(pts, append=pts[-1:] + usual), place)
    played = _Played(content, {time: number for number, time in enumerate(pts.tolist())}, kept, deadline)
    return VideoPackets(TrackCodec(name), (), pts.tolist(), timescale, play=played.find, deadline=deadline), frames


def _decode_all(opened: _Opened, deadline: Deadline) -> Iterator[VideoFrame]:
    """Decodes all packets as FFmpeg plays them: those that it cannot decode have no frame."""
    import av

    context = opened.stream.codec_context
    for packet in [*opened.packets, None]:
        deadline.check()
        try:
            yield from context.decode(packet)
        except av.FFmpegError:
            # A video that begins between key frames, and a damaged one, go on with the next frame.
            continue
