"""Decodes videos: clips and whole videos as RGB, depth cameras of LeRobot as millimetres, and the audio of clips.

`media/decode/__init__.py` finds the decoders of clips by the kind of a field. Users name `Frames` and `VideoClip`.
"""

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
from streamer.media.decode.decoder import Deadline, MediaDecoder, check_seconds, import_pyav, memory_for
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
        size: height and width to which frames are resized (bicubic). None keeps those of the video.
        dimension_order: "NCHW", or "NHWC" for [frames, height, width, 3].

    Raises:
        ConfigError: a value is invalid.
    """

    size: tuple[int, int] | None = None
    dimension_order: Literal["NCHW", "NHWC"] = "NCHW"

    def __post_init__(self) -> None:
        _check_output(type(self).__name__, self.size, self.dimension_order)

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Array:
        """Decodes the frames of a record, in the shape of its clips; see `TargetDecoder.decode`.

        Raises:
            ConfigError: PyAV has no such decoder, or is not installed (`check` tells it before).
            ValueError, msgspec.MsgspecError: the record or its packets are damaged.
        """
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
        """Decodes the frames of these times.

        Args:
            video: the packets.
            pts: times of the frames, ticks of the video.
            shape: the axes of the result before those of a frame, for as many frames as there are times.
            out: memory that is used for the result if it fits.

        Raises:
            ConfigError: PyAV has no such decoder, or is not installed (`check` tells it before).
            ValueError: a frame cannot be decoded, or has another size than the first one, or decoding takes too long.
        """
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
    """Decodes a clip of a whole video, in most containers that FFmpeg reads: uint8, RGB, [frames, 3, height, width].

        StreamingDataset(url, decode={"mp4": VideoClip(16, start="random", size=(224, 224))})

    Attributes:
        num_frames_per_clip: frames of the clip.
        num_indices_between_frames: frames of the video from one frame of the clip to the next.
        seconds_between_frames: seconds instead. The clip has the frames shown at these times.
        start: where the clip begins: with the "first" frame, so that it is in the "middle", or at "random", drawn anew
            in each epoch.
        at_end: "error" refuses videos shorter than a clip, "repeat_last" repeats their last frame.
        size: height and width to which frames are resized (bicubic). None keeps those of the video.
        dimension_order: "NCHW", or "NHWC" for [frames, height, width, 3].

    Raises:
        ConfigError: a value is invalid.
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
        """Decodes a clip of a whole video; see `TargetDecoder.decode`.

        Raises:
            ConfigError: PyAV has no such decoder, or is not installed (`check` tells it before).
            ValueError: the video is damaged, too short or of a kind that is not decoded, or takes too long.
        """
        deadline = Deadline(len(content))
        try:
            return self._clip(*read_video(content, deadline), out, draws)
        except DisorderError:
            return self._clip(*read_container(content, deadline, by_number=True), out, draws)

    def _clip(self, video: VideoPackets, frames: FrameTable, out: Array | None, draws: Draws | None) -> Array:
        """Chooses the frames of the clip in a video, and decodes them; raises DisorderError as `decode_frames`."""
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
    """Decodes the audio of clips: float32 [channels, samples], with zeros where the video has no audio.

    Samples of several clips have one more axis before these.
    """

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Array:
        """Decodes the audio of a record; see `TargetDecoder.decode`.

        Raises:
            ConfigError: PyAV is not installed, or has no such decoder.
            ValueError, struct.error, msgspec.MsgspecError, av.FFmpegError: the record or its packets are damaged.
        """
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
    """Decodes the times of frames, in seconds: float64, one for each frame.

    Attributes:
        durations: whether durations of the frames are returned instead.
    """

    needs_pyav = False
    durations: bool = False

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Array:
        """Returns the times in a record, for equal `draws` those of `Frames`; errors as of `read_head`."""
        head, _ = read_head(content)
        found = head.seconds(draws() if draws else None, durations=self.durations)
        made = memory_for(found.shape, np.float64, out)
        made[...] = found
        return made


def _check_output(name: str, size: object, order: object) -> None:
    """Raises ConfigError for an invalid `size` or `dimension_order` of the decoder `name`."""
    if order not in _ORDERS:
        raise ConfigError(f"{name}: dimension_order={order!r} is none of {', '.join(_ORDERS)}", field="decode")
    is_pair = isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)
    if size is not None and not is_pair:
        raise ConfigError(f"{name}: size={size!r} is not (height, width)", field="decode")


def decode_frames(video: VideoPackets, wanted: Sequence[int]) -> list[VideoFrame]:
    """Decodes packets from the first one on until all wanted frames are there; returns them in the order of the times.

    Args:
        video: the packets.
        wanted: times of the frames, ticks.

    Raises:
        ConfigError: PyAV has no such decoder, or is not installed.
        DisorderError: frames are shown in another order than the times say.
        ValueError: a frame cannot be decoded, or decoding takes too long.
    """
    import_pyav()
    import av

    missing = set(wanted)
    try:
        if video.play:
            found = video.play(missing)
        else:
            # Frames to which no other frame refers are skipped if they are not wanted. These are half of the packets of
            # x264, and skipping them saves 30 % of the CPU time of a clip of 16 frames, every second one, of 1280x720.
            # Of x265 they are 58 % of the packets and 17 % of the time, at 640x272 (2026-11-26).
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
    """Decodes packets, and returns the wanted frames that they have, by time.

    Args:
        video: the packets.
        wanted: times of the frames, ticks.
        skippable: whether the decoder may drop the frame of each packet, if it is not wanted and not referred to.
    """
    context = video.context()
    found = _Found(wanted)
    base = Fraction(1, video.timescale)
    gaps = set(video.gaps)
    for number, (content, pts) in enumerate(zip(video.packets, video.pts, strict=True)):
        video.deadline.check()
        # An empty packet is left out, because FFmpeg takes it for the end.
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
    """Collects the frames of wanted times from a decoder.

    Args:
        wanted: the times, ticks.

    Attributes:
        frames: the frames found so far, by time.
    """

    def __init__(self, wanted: set[int]) -> None:
        self.frames: dict[int, VideoFrame] = {}
        self._wanted = wanted
        self._last: int | None = None

    def take(self, frames: Sequence[VideoFrame]) -> None:
        """Takes the next frames that the decoder shows; raises DisorderError if their times do not ascend."""
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
    """Finds packets and frames of a whole video: of mp4 and mov by their own index, of other files by FFmpeg.

    Args:
        content: bytes of the file.
        deadline: limit of the time for decoding.

    Raises:
        ConfigError: PyAV is not installed.
        ValueError: the file is no video, or damaged, or takes too long.
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


# Functions that make the decoder of each kind of field (`media/containers/records.py`).
CLIP_DECODERS: dict[str, Callable[[], MediaDecoder]] = {
    "clip": Frames,
    "clip-pts": ClipTimes,
    "clip-audio": ClipAudioDecoder,
    "clip-duration": lambda: ClipTimes(durations=True),
}


# Depth cameras store numbers of so many bits.
_BITS = 12
_MAX = (1 << _BITS) - 1
_MM_PER_METRE = 1000.0
_MAX_MM = 65_535.0


@dataclass(frozen=True)
class DepthFrames(Frames):
    """Decodes the frames of a depth camera: whole millimetres as float32, [frames, 1, height, width].

    Attributes:
        depth: how distances were stored.
    """

    depth: Depth = field(default_factory=Depth)

    def decode_video(self, video: VideoPackets, pts: Integers, shape: tuple[int, ...], out: Array | None) -> Array:
        """Decodes the frames of these times; see `Frames.decode_video`. The frames are neither resized nor turned.

        Raises:
            ConfigError: as `Frames.decode_video`.
            ValueError: as `Frames.decode_video`, or the frames do not have 12 bits.
        """
        frames = decode_frames(video, pts.tolist())
        first = frames[0]
        made = memory_for((*shape, 1, first.height, first.width), np.float32, out)
        for frame, target in zip(frames, made.reshape(-1, first.height, first.width), strict=True):
            if (frame.height, frame.width) != (first.height, first.width):
                raise ValueError(f"its frames change from {first.width}x{first.height} to {frame.width}x{frame.height}")
            # Distances are stored as the luma of a frame.
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
        """Converts stored numbers to whole millimetres, at most 65,535."""
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
