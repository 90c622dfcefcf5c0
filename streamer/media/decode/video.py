"""Decodes videos: clips and whole videos as RGB, and the depth cameras of LeRobot as millimetres."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from numbers import Integral
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.decode.base import Array, Draws
from streamer.errors import ConfigError
from streamer.formats.failures import UnreadError
from streamer.media.audio.windows import packets_of
from streamer.media.containers.clips import FrameTable, Pattern
from streamer.media.containers.entries import ENCRYPTED
from streamer.media.containers.movie import is_movie
from streamer.media.containers.packet_checks import find_droppable
from streamer.media.containers.records import open_record, read_head
from streamer.media.containers.tables import Integers
from streamer.media.decode.audio import decode_packets
from streamer.media.decode.decoder import Deadline, MediaDecoder, check_seconds, memory_for
from streamer.media.decode.rgb import turn_size, write_rgb
from streamer.media.decode.video_packets import DisorderError, VideoPackets, read_container, read_mp4
from streamer.media.lerobot.info import Depth
from streamer.removed import check_options

if TYPE_CHECKING:
    from av import VideoFrame

_ORDERS = ("NCHW", "NHWC")
_STARTS = ("first", "middle", "random")
_AT_END = ("error", "repeat_last")


@dataclass(frozen=True)
class Frames(MediaDecoder):
    """Decodes the clips of `Video`: uint8, RGB, [frames, 3, height, width].

        StreamingDataset(url, format=Video(), decode={"frames": Frames((224, 224))})

    Attributes:
        size: height and width to which frames are resized (bicubic); None: as they are.
        dimension_order: "NCHW", or "NHWC": [frames, height, width, 3].

    Raises:
        ConfigError: an invalid value.
    """

    size: tuple[int, int] | None = None
    dimension_order: Literal["NCHW", "NHWC"] = "NCHW"

    def __post_init__(self) -> None:
        _check_output(type(self).__name__, self.size, self.dimension_order)

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Array:
        """Decodes a record; see `MediaDecoder`."""
        try:
            record = open_record(content)
        except struct.error as error:
            raise ValueError(f"a clip is cut off: {error}") from error
        pts, _ = record.head.draw(draws() if draws else None)
        first, stop = record.span(pts)
        gaps = [gap - first for gap in record.gaps if first < gap < stop]
        video = VideoPackets(
            codec=record.codec,
            packets=record.packets[first:stop],
            pts=record.pts[first:stop],
            timescale=record.head.timescale,
            gaps=gaps,
        )
        return self.decode_video(video, pts, record.head.shape(len(pts)), out)

    def decode_video(self, video: VideoPackets, pts: Integers, shape: tuple[int, ...], out: Array | None) -> Array:
        """Decodes the frames of these times, which get this shape."""
        frames = decode_frames(video, pts.tolist())
        first = frames[0]
        planar = self.dimension_order == "NCHW"
        rotation = video.rotation(first)
        height, width = self.size or turn_size((first.height, first.width), rotation) or (0, 0)
        image = (3, height, width) if planar else (height, width, 3)
        made = memory_for((*shape, *image), np.uint8, out)
        for frame, target in zip(frames, made.reshape(-1, *image), strict=True):
            if (frame.height, frame.width) != (first.height, first.width):
                raise ValueError(f"its frames change from {first.width}x{first.height} to {frame.width}x{frame.height}")
            write_rgb(frame, self.size, rotation, target, planar=planar)
        return made


@check_options
@dataclass(frozen=True)
class VideoClip(MediaDecoder):
    """Decodes a clip of a whole video, in any container that FFmpeg reads: uint8, RGB, [frames, 3, height, width].

        StreamingDataset(url, decode={"mp4": VideoClip(16, start="random", size=(224, 224))})

    Attributes:
        num_frames_per_clip: frames of the clip.
        num_indices_between_frames: one of so many frames.
        seconds_between_frames: instead of it: the frames shown at these distances from the first one.
        start: where the clip begins: with the "first" frame, so that it is in the "middle", or at "random", drawn anew
            in each epoch.
        at_end: What becomes of videos shorter than a clip: an "error", or "repeat_last" repeats the last frame.
        size: height and width to which frames are resized (bicubic); None: as they are.
        dimension_order: "NCHW", or "NHWC": [frames, height, width, 3].

    Raises:
        ConfigError: an invalid value.
    """

    num_frames_per_clip: int = 16
    _: KW_ONLY
    num_indices_between_frames: int = 1
    seconds_between_frames: float | None = None
    start: Literal["first", "middle", "random"] = "middle"
    at_end: Literal["error", "repeat_last"] = "error"
    size: tuple[int, int] | None = None
    dimension_order: Literal["NCHW", "NHWC"] = "NCHW"

    def __post_init__(self) -> None:
        _check_output("VideoClip", self.size, self.dimension_order)
        for name, value, known in (("start", self.start, _STARTS), ("at_end", self.at_end, _AT_END)):
            if value not in known:
                raise ConfigError(f"VideoClip: {name}={value!r} is none of {', '.join(known)}", field="decode")
        for name in ("num_frames_per_clip", "num_indices_between_frames"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ConfigError(f"VideoClip: {name}={value!r} is not a whole number of at least 1", field="decode")
        if self.seconds_between_frames is None:
            return
        check_seconds("VideoClip", "seconds_between_frames", self.seconds_between_frames)
        if self.num_indices_between_frames != 1:
            raise ConfigError(
                f"VideoClip: seconds_between_frames={self.seconds_between_frames} and num_indices_between_frames="
                f"{self.num_indices_between_frames} exclude each other: leave one out",
                field="decode",
            )

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Array:
        """Decodes a clip of a video; see `MediaDecoder`."""
        deadline = Deadline(len(content))
        try:
            return self._clip(*read_video(content, deadline), out, draws)
        except DisorderError:
            return self._clip(*read_container(content, deadline, by_number=True), out, draws)

    def _clip(self, video: VideoPackets, frames: FrameTable, out: Array | None, draws: Draws | None) -> Array:
        between = self.seconds_between_frames
        every = 0 if between is not None else self.num_indices_between_frames
        pattern = Pattern(self.num_frames_per_clip, every, (between or 0.0) * video.timescale)
        begins = pattern.fits(frames.pts, int((frames.pts + frames.duration).max(initial=0)))
        if not begins and (self.at_end == "error" or not len(frames)):
            raise ValueError(
                f"the video has {len(frames)} frames, a clip needs more; at_end='repeat_last' repeats the last one"
            )
        begins = max(begins, 1)
        if self.start == "random" and draws is not None:
            begin = int(draws().integers(begins))
        else:
            begin = 0 if self.start == "first" else (begins - 1) // 2
        chosen = pattern.find_frames(frames.pts, np.array([begin]))[0]
        piece = video.piece(int(frames.start[chosen].min()), int(frames.packet[chosen].max()) + 1)
        output = Frames(self.size, self.dimension_order)
        return output.decode_video(piece, frames.pts[chosen], (self.num_frames_per_clip,), out)


@dataclass(frozen=True)
class ClipAudioDecoder(MediaDecoder):
    """Decodes the audio of clips: float32 [channels, samples], zeros where the video has none."""

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Array:
        """Decodes a record; see `MediaDecoder`."""
        head, rest = read_head(content)
        if (audio := head.audio) is None or not 0 < audio.stored <= len(rest):
            raise ValueError("a clip without audio")
        pts, _ = head.draw(draws() if draws else None)
        wave = decode_packets(packets_of(rest[len(rest) - audio.stored :]), audio.codec)
        made = memory_for((*head.shape(len(pts))[:-1], len(wave), audio.length), np.float32, out)
        made[...] = 0
        begins = [audio.begin(time / head.timescale) for time in pts[:: head.pattern.count].tolist()]
        for begin, target in zip(begins, made.reshape(-1, *made.shape[-2:]), strict=True):
            start = max(begin, 0)
            stop = max(start, min(begin + audio.length, audio.total))
            if stop > start and wave.shape[1] < stop - audio.first:
                raise ValueError(f"{wave.shape[1]} samples are decoded of {stop - audio.first}")
            target[:, start - begin : stop - begin] = wave[:, start - audio.first : stop - audio.first]
        return made


@dataclass(frozen=True)
class ClipTimes(MediaDecoder):
    """Decodes the times of frames, seconds: float64, as many as frames."""

    needs_pyav = False
    durations: bool = False

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Array:
        """Reads times of a record; see `MediaDecoder`."""
        head, _ = read_head(content)
        found = head.seconds(draws() if draws else None, durations=self.durations)
        made = memory_for(found.shape, np.float64, out)
        made[...] = found
        return made


def _check_output(name: str, size: object, order: object) -> None:
    if order not in _ORDERS:
        raise ConfigError(f"{name}: dimension_order={order!r} is none of {', '.join(_ORDERS)}", field="decode")
    is_pair = isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)
    if size is not None and not is_pair:
        raise ConfigError(f"{name}: size={size!r} is not (height, width)", field="decode")


def decode_frames(video: VideoPackets, wanted: Sequence[int]) -> list[VideoFrame]:
    """The frames shown at these times, of packets that are decoded from the first on."""
    import av

    missing = set(wanted)
    try:
        if video.play:
            found = video.play(missing)
        else:
            # Frames to which no other refers are skipped where they are not wanted: half of the packets of x264, and
            # 30 % of the CPU of a clip of 16 frames, every second one, of 1280x720; 58 % of x265's packets, and 17 % at
            # 640x272 (2026-11-26).
            skippable = find_droppable(video.packets, video.codec)
            found = _find_frames(video, missing, skippable)
            if len(found) < len(missing) or any(frame.interlaced_frame for frame in found.values()):
                # A video may not say how far frames are reordered: the decoder then has to learn it from all of
                # them. The second field of a frame may be a packet of its own, at a time that no clip wants.
                found = _find_frames(video, missing, [False] * len(skippable))
    except av.FFmpegError as error:
        raise ValueError(f"FFmpeg: {error}") from error
    if missing := missing - found.keys():
        raise ValueError(
            f"{len(missing)} of {len(set(wanted))} frames cannot be decoded, the first at "
            f"{min(missing) / video.timescale:.3f} s, from {len(video.packets)} packets"
        )
    return [found[pts] for pts in wanted]


def _find_frames(video: VideoPackets, wanted: set[int], skippable: Sequence[bool]) -> dict[int, VideoFrame]:
    """The wanted frames that the packets have, by time; others are skipped where they are `skippable`."""
    context = video.context()
    found = _Found(wanted)
    base = Fraction(1, video.timescale)
    gaps = set(video.gaps)
    for number, (content, pts) in enumerate(zip(video.packets, video.pts, strict=True)):
        video.deadline.check()
        # FFmpeg takes a packet without a byte for the end.
        if not len(content):
            continue
        if number in gaps:
            found.take(context.decode(None))
            context.flush_buffers()
        context.skip_frame = "NONREF" if skippable[number] and pts not in wanted else "DEFAULT"
        packet = video.packet(number)
        packet.pts = pts
        packet.time_base = base
        found.take(context.decode(packet))
        if len(found.frames) == len(wanted):
            return found.frames
    found.take(context.decode(None))
    return found.frames


class _Found:
    """Frames of the wanted times, as a decoder shows them."""

    def __init__(self, wanted: set[int]) -> None:
        self.frames: dict[int, VideoFrame] = {}
        self._wanted = wanted
        self._last: int | None = None

    def take(self, frames: Sequence[VideoFrame]) -> None:
        """Takes the next frames; raises DisorderError if one of them is shown before its time."""
        for frame in frames:
            pts = frame.pts
            if pts is None:
                continue
            if self._last is not None and pts < self._last:
                raise DisorderError(
                    "its frames are shown in another order than its times say, as where they are times of decoding "
                    "(no ctts): encode it anew, or decode whole videos (VideoClip)"
                )
            self._last = pts
            if pts in self._wanted:
                self.frames[pts] = frame


def read_video(content: memoryview, deadline: Deadline) -> tuple[VideoPackets, FrameTable]:
    """Finds packets and frames of a whole video: of mp4 and mov by their own index, of what else there is by FFmpeg.

    Args:
        content: Bytes of the file.
        deadline: Limit of the time for decoding.

    Raises:
        ValueError: it is not a video, or damaged, or takes too long.
    """
    if not is_movie(content):
        return read_container(content, deadline)
    try:
        video, frames, is_timed = read_mp4(content)
    except UnreadError as error:
        if ENCRYPTED in str(error):
            raise
        return read_container(content, deadline, by_number=True)
    if is_timed:
        return msgspec.structs.replace(video, deadline=deadline), frames
    return read_container(content, deadline, by_number=True)


# Decoders by the kind of a field.
CLIP_DECODERS: dict[str, Callable[[], MediaDecoder]] = {
    "clip": Frames,
    "clip-pts": ClipTimes,
    "clip-audio": ClipAudioDecoder,
    "clip-duration": lambda: ClipTimes(durations=True),
}


_BITS = 12
_MAX = (1 << _BITS) - 1
_MM_PER_METRE = 1000.0
_MAX_MM = 65_535.0


@dataclass(frozen=True)
class DepthFrames(Frames):
    """Decodes the frames of a depth camera: whole millimetres as float32, [frames, 1, height, width].

    Attributes:
        depth: How distances were stored.
    """

    depth: Depth = field(default_factory=Depth)

    def decode_video(self, video: VideoPackets, pts: Integers, shape: tuple[int, ...], out: Array | None) -> Array:
        """Decodes the frames of these times, which get this shape."""
        frames = decode_frames(video, pts.tolist())
        first = frames[0]
        made = memory_for((*shape, 1, first.height, first.width), np.float32, out)
        for frame, target in zip(frames, made.reshape(-1, first.height, first.width), strict=True):
            if (frame.height, frame.width) != (first.height, first.width):
                raise ValueError(f"its frames change from {first.width}x{first.height} to {frame.width}x{frame.height}")
            # The numbers of a frame are its luma.
            luma = frame.format.components[0]
            if luma.bits != _BITS or not frame.format.name.endswith("le") or frame.format.is_rgb:
                raise ValueError(
                    f"a depth camera has frames of {_BITS} bits, and these are {frame.format.name}: leave it out "
                    "(LeRobot(cameras=...)), or record it again"
                )
            plane = frame.planes[0]
            rows: NDArray[np.uint16] = np.frombuffer(memoryview(plane), "<u2").reshape(-1, plane.line_size // 2)
            target[...] = self._millimetres(rows[: frame.height, : frame.width])
        return made

    def _millimetres(self, codes: NDArray[np.uint16]) -> NDArray[np.float32]:
        depth = self.depth
        low, high = depth.depth_min, depth.depth_max
        if depth.use_log:
            low, high = math.log(low + depth.shift), math.log(high + depth.shift)
        found = codes.astype(np.float32)
        found *= np.float32((high - low) / _MAX)
        found += np.float32(low)
        if depth.use_log:
            np.exp(found, out=found)
            found -= np.float32(depth.shift)
        np.clip(found, depth.depth_min, depth.depth_max, out=found)
        found *= np.float32(_MM_PER_METRE)
        np.rint(found, out=found)
        return np.clip(found, 0, _MAX_MM, out=found)
