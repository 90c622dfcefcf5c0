"""Reads whole files for decoding: their packets, the times of their frames, and the parameters of a decoder.

`video.py` decodes `VideoPackets`, of clips and of whole videos. `audio.py` opens containers with it. Whole mp4 and mov
are read by their own index (`read_mp4`). FFmpeg reads other containers, and mp4 of a kind that is not read so.
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
    context_of,
    import_pyav,
    limit,
    packet_of,
)

if TYPE_CHECKING:
    from av import Packet, VideoCodecContext, VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

# Containers that are read, as FFmpeg's demuxers are called: each file is whole by itself. Other demuxers open ports or
# further files, or guess frames.
_READ = (
    "aac,ac3,ac4,aiff,amr,amrnb,amrwb,ape,apng,asf,au,av1,avi,avr,avs2,avs3,bink,caf,cavsvideo,"
    "dirac,dnxhd,dsf,dts,dtshd,dv,eac3,flac,flic,flv,gif,gsm,gxf,h261,h263,h264,hevc,iff,ircam,"
    "ivf,loas,m4v,matroska,mjpeg,mlp,mov,mp3,mpc,mpc8,mpeg,mpegts,mpegvideo,mxf,nistsphere,nsv,"
    "nut,nuv,obu,ogg,oma,pva,pvf,qcp,rm,shn,smjpeg,smk,sox,swf,tak,truehd,tta,vc1,voc,vvc,"
    "w64,wav,webm,wtv,wv,xwma,yuv4mpegpipe"
)
# These containers store when each frame is shown. FFmpeg guesses it for others, and wrongly where frames are reordered.
_TIMED = frozenset(["flv", "gif", "ivf", "matroska", "mpegts", "mxf", "nut", "ogg", "webm", "wtv"])
# A video may have to be decoded to know the order of its frames. So many bytes of them are kept, others are decoded
# once more.
_MAX_KEPT_BYTES = 128 << 20
# AV_CODEC_PROP_REORDER: frames may be stored in another order than shown.
_REORDER = 1 << 3
_USUAL_RATE = 25


class DisorderError(ValueError):
    """Raised where frames are shown in another order than the times of their packets say."""


class VideoPackets(msgspec.Struct, frozen=True):
    """Packets of a video, to decode.

    Attributes:
        codec: codec parameters of the packets.
        packets: bytes of the packets, in the order stored.
        pts: time of each packet, ticks.
        timescale: number of ticks in a second.
        gaps: numbers of the packets before which others are left out.
        stored: the packets as FFmpeg's demuxer gives them, with their side data. Empty if FFmpeg has not read them.
        open: opens a context that has decoded nothing. None means that `codec` says all about it.
        play: is given times and returns their frames, by decoding the file from its beginning. None means that frames
            are decoded from `packets`.
        deadline: limit of the time for decoding.
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
        """Returns the video of the packets `[first, stop)`; with `play` its frames still come from the whole file."""
        return msgspec.structs.replace(
            self,
            packets=self.packets[first:stop],
            pts=self.pts[first:stop],
            gaps=[gap - first for gap in self.gaps if first < gap < stop],
            stored=self.stored[first:stop],
        )

    def context(self) -> VideoCodecContext:
        """Opens a decoder of FFmpeg (a context) that has decoded nothing.

        Raises:
            ConfigError: PyAV is not installed, or has no such decoder.
            ValueError, av.FFmpegError: the codec is one of audio, or `open` cannot read the file again.
        """
        context = self.open() if self.open else context_of(self.codec)
        import av

        if not isinstance(context, av.VideoCodecContext):
            raise ValueError(f"{self.codec.name} is an audio codec")
        return context

    def rotation(self, frame: VideoFrame) -> int:
        """Returns the degrees counterclockwise by which a frame is turned: 0, 90, 180, 270."""
        if not self.open and not self.play:
            return self.codec.rotation
        return 0 if frame.rotation % 90 else frame.rotation % 360

    def packet(self, number: int) -> Packet[Any]:
        """Returns the packet of this number as PyAV has packets."""
        return self.stored[number] if self.stored else packet_of(self.packets[number])


def read_mp4(content: memoryview) -> tuple[VideoPackets, FrameTable, bool]:
    """Finds packets and frames of a whole mp4 or mov by its index.

    Returns:
        The packets, the frames, and whether all shown packets can be decoded to frames at these times. If that is
        False, the whole file has to be decoded to know its frames.

    Raises:
        UnreadError: the file, or its edit list or codec, is of a kind that is not read.
        DamagedError: the boxes contradict each other.
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
    # If codec parameters change within the video, those of `video` hold for its first packets only.
    return video, frames, is_whole and is_timed and len(entries) <= 1


class _Opened(msgspec.Struct):
    """A file opened by FFmpeg.

    Attributes:
        box: the container.
        stream: its video track.
        packets: all packets of the track that are not empty.
    """

    box: InputContainer
    stream: VideoStream
    packets: Sequence[Packet[Any]]


class _Played(msgspec.Struct):
    """The frames of a video by their places in a full decode.

    Attributes:
        content: bytes of the file.
        places: place of each frame, by its time in ticks.
        frames: the first frames, which are decoded already.
        deadline: limit of the time for decoding.
    """

    content: memoryview
    places: dict[int, int]
    frames: list[VideoFrame]
    deadline: Deadline

    def find(self, wanted: Collection[int]) -> dict[int, VideoFrame]:
        """Returns the frames of these times; decodes the file again if one is not among the first frames."""
        times = {self.places[time]: time for time in wanted}
        last = max(times)
        frames = (
            self.frames if last < len(self.frames) else _decode_all(_open(self.content, self.deadline), self.deadline)
        )
        return {times[place]: frame for place, frame in enumerate(islice(frames, last + 1)) if place in times}


def open_container(content: memoryview, deadline: Deadline) -> InputContainer:
    """Opens a file with FFmpeg, which may open no other file or address for it.

    Args:
        content: bytes of the file.
        deadline: limit of the time for reading it.

    Raises:
        ConfigError: PyAV is not installed.
        ValueError: the file is none of the containers that are read.
        av.FFmpegError: the file is damaged.
    """
    import_pyav()
    import av

    options = {"format_whitelist": _READ, "protocol_whitelist": ""}
    try:
        # FFmpeg looks at the first frames when it opens a file, for `MAX_SECONDS` at most.
        return av.open(LimitedReader(content, deadline), "r", container_options=options, timeout=(MAX_SECONDS, None))
    except av.FFmpegError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ValueError(f"it is none of the containers that are read: {_READ.replace(',', ', ')}") from error


def read_container(
    content: memoryview, deadline: Deadline, *, by_number: bool = False
) -> tuple[VideoPackets, FrameTable]:
    """Finds packets and frames of a video by FFmpeg: by stored times, or else by decoding the whole video.

    Args:
        content: bytes of the file.
        deadline: limit of the time for decoding.
        by_number: whether the whole video is decoded, because its times are known to be wrong.

    Raises:
        ConfigError: PyAV is not installed.
        ValueError: the file is no video, or damaged, or takes too long.
    """
    import_pyav()
    import av

    try:
        opened = _open(content, deadline)
        pts = [packet.pts for packet in opened.packets]
        names = frozenset(opened.box.format.name.split(","))
        is_reordered = bool(opened.stream.codec_context.codec.properties & _REORDER)
        is_timed = not is_reordered or not names.isdisjoint(_TIMED)
        # A packet may bring another palette or other parameters for all packets after it. Clips that begin later would
        # be decoded without them.
        is_timed = is_timed and not any(map(_brings_parameters, opened.packets[1:]))
        if by_number or not is_timed or None in pts or len(set(pts)) < len(pts):
            return _read_by_number(content, opened, deadline)
        video, frames = _read_by_times(content, opened, deadline)
        if len(frames) < sum(not packet.is_discard for packet in opened.packets):
            # The video begins between key frames, or with frames of an open GOP, of which some may be shown.
            return _read_by_number(content, _open(content, deadline), deadline)
        return video, frames
    except av.FFmpegError as error:
        raise ValueError(f"FFmpeg: {error}") from error


def _brings_parameters(packet: Packet[Any]) -> bool:
    # Packets of PyAV before 16 do not say what side data they have.
    has = getattr(packet, "has_sidedata", None)
    return has is not None and any(map(has, ("palette", "new_extradata")))


def _open(content: memoryview, deadline: Deadline) -> _Opened:
    """Opens a file, and reads all packets of its best video track.

    Raises:
        ConfigError: PyAV is not installed.
        ValueError: the file has no video, or none that is decoded.
        av.FFmpegError: the file is damaged.
    """
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
    """Returns packets and frames by the times that FFmpeg has read; raises ValueError if times have no unit."""
    stream = opened.stream
    found = opened.packets
    context = opened.stream.codec_context
    if (base := stream.time_base) is None:
        raise ValueError("its times have no unit")
    codec = TrackCodec(context.codec.name, context.extradata or b"", context.width, context.height)
    # Times become multiples of 1 / base.denominator seconds.
    pts = np.array([packet.pts for packet in found], np.int64) * base.numerator
    duration = np.array([packet.duration or 0 for packet in found], np.int64) * base.numerator
    key = np.array([packet.is_keyframe for packet in found], bool)
    shown = np.array([not packet.is_discard for packet in found], bool)
    size = np.array([packet.size for packet in found], np.int64)
    # Places in the file are not needed, because FFmpeg keeps the bytes of packets. All have one set of parameters.
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
    """Opens contexts with all that a container says about its video, such as codec tag and palette; one at each call.

    Args:
        content: bytes of the file, which is opened again for each call after the first one.
        first: the context of the first call.
        deadline: limit of the time for decoding.
    """

    def __init__(self, content: memoryview, first: VideoCodecContext, deadline: Deadline) -> None:
        self._content = content
        self._deadline = deadline
        self._first: VideoCodecContext | None = first

    def __call__(self) -> VideoCodecContext:
        found, self._first = self._first, None
        return found if found is not None else _open(self._content, self._deadline).stream.codec_context


def _read_by_number(content: memoryview, opened: _Opened, deadline: Deadline) -> tuple[VideoPackets, FrameTable]:
    """Decodes the whole video, to know how many frames are shown and in which order.

    Frames get the sorted times of decoding if there are as many as frames, else times at the usual rate.

    Raises:
        ValueError: decoding takes too long.
    """
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
    # Frames are shown at the times at which packets are decoded, only in another order.
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
    """Decodes all packets as FFmpeg plays them, and leaves out those that it cannot decode; raises ValueError."""
    import av

    context = opened.stream.codec_context
    for packet in [*opened.packets, None]:
        deadline.check()
        try:
            yield from context.decode(packet)
        except av.FFmpegError:
            # Playing goes on with the next frame, in a video that begins between key frames or is damaged.
            continue
