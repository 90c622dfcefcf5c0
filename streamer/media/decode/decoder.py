"""What decoders of videos and audio have in common. Imports no library, so that every worker may."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streamer.base.interpreter import require_modules
from streamer.decode.base import Array, TargetDecoder
from streamer.errors import ConfigError
from streamer.media.containers.entries import TrackCodec

if TYPE_CHECKING:
    import av

# A clip of a video of 1920x1080 takes some 0.1 s. A full decode, where nothing else says the order of frames, makes
# about 20,000 frames of 1280x720 in this time (2026-11-28).
MAX_SECONDS = 60.0
# A long video may have more frames: an hour of 1920x1080 at 100 kbit/s is 45 MB, and takes some 400 s to decode. What
# a header says of the length does not count, because that of a crafted file says anything.
_SECONDS_PER_MB = 10.0
# Above 8K; FFmpeg would take as much memory as a damaged header says.
_MAX_PIXELS = 64 << 20


class MediaDecoder(TargetDecoder):
    """Decodes a field of frames or audio."""

    needs_pyav: ClassVar[bool] = True

    def check(self, codecs: Collection[str] = ()) -> None:
        """Raises ConfigError if PyAV is needed and not installed, or does not decode one of these codecs.

        Imports it for them alone.
        """
        if self.needs_pyav:
            check_codecs(codecs)


def check_seconds(decoder: str, name: str, value: object, *, zero: bool = False) -> None:
    """Raises ConfigError unless the value is a finite number of seconds, positive or, if `zero`, 0."""
    if (
        not isinstance(value, int | float | np.integer | np.floating)
        or not 0 <= value < math.inf
        or (value == 0 and not zero)
    ):
        rule = "a time from 0 on" if zero else "a positive number"
        raise ConfigError(f"{decoder}: {name}={value!r} is not {rule}, finite and in seconds", field="decode")


def memory_for(shape: tuple[int, ...], dtype: type[np.generic], out: Array | None) -> Array:
    """Returns `out` if it has this shape and type, else new memory."""
    fits = out is not None and out.shape == shape and out.dtype == dtype
    return out if fits and out is not None else np.empty(shape, dtype)


class Deadline:
    """Limits the time that the decoding of one sample takes.

    It is CPU time of the thread, in which FFmpeg decodes: a busy or suspended machine refuses nothing.

    Args:
        stored_bytes: Length of what is decoded: a long file has more time.
    """

    def __init__(self, stored_bytes: int = 0) -> None:
        self._seconds = MAX_SECONDS + _SECONDS_PER_MB * stored_bytes / 1e6
        self._end = time.thread_time() + self._seconds
        self._earliest_end = time.monotonic() + self._seconds

    def check(self) -> None:
        """Raises ValueError once the time is used up."""
        # A thread has no more CPU time than has passed, and to ask for the time that has passed is no system call:
        # this is called for each packet and frame.
        if time.monotonic() > self._earliest_end and time.thread_time() > self._end:
            raise ValueError(
                f"decoding takes more than {self._seconds:.3g} s of CPU: the file is damaged or crafted, or it is long "
                "and has to be cut, or converted so that clips of it are decoded alone (ffmpeg -i FILE OUT.mp4, audio "
                "as OUT.flac)"
            )


class LimitedReader(io.BytesIO):
    """Reads bytes for FFmpeg's demuxers, until the deadline."""

    def __init__(self, content: memoryview, deadline: Deadline) -> None:
        super().__init__(content)
        self._deadline = deadline

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads so many bytes; raises ValueError behind the deadline."""
        self._deadline.check()
        return super().read(size)


def check_library() -> None:
    """Raises ConfigError where PyAV is not installed; imports nothing."""
    require_modules("decoding videos and compressed audio", "video", "av", field="decode")


def check_codecs(names: Collection[str]) -> None:
    """Raises ConfigError where PyAV is not installed, or has no decoder for one of these, which are FFmpeg's names."""
    check_library()
    for name in names:
        import av

        try:
            av.Codec(name, "r")
        except ValueError as error:
            raise ConfigError(
                f"this PyAV ({av.__version__}) has no decoder {name!r}: its wheels have it, pip install -U av",
                field="decode",
            ) from error


def context_of(codec: TrackCodec) -> av.VideoCodecContext | av.AudioCodecContext:
    """Opens a context for these parameters, which has decoded nothing.

    None is used again: packets bring parameter sets, quantisers, Huffman tables and rates of their own, decoders of AAC
    draw noise and those of h264 learn how far frames are reordered, and `flush_buffers` keeps all of it. A new one
    takes 0.1 ms, and in videos of 1280x720 a few more for its 25 MB (2026-11-28).

    Raises:
        ConfigError: PyAV is not installed, or has no such decoder.
    """
    check_codecs([codec.name])
    import av

    context = av.CodecContext.create(codec.name, "r")
    context.extradata = codec.extradata or None
    limit(context)
    if isinstance(context, av.VideoCodecContext):
        if codec.width and codec.height:
            context.width, context.height = codec.width, codec.height
        if codec.colour is not None:
            context.color_primaries, context.color_trc, context.colorspace = codec.colour[:3]
            context.color_range = 2 if codec.colour[3] else 1
        return context
    assert isinstance(context, av.AudioCodecContext), codec.name
    if codec.rate:
        context.sample_rate = codec.rate
    return context


def limit(context: av.CodecContext) -> None:
    """Gives a context that is not open one thread, and a bound of pixels."""
    # Frame threads hang when decoding ends early, and threads do not survive a fork.
    context.thread_count = 1
    context.options = {"max_pixels": str(_MAX_PIXELS)}


def packet_of(content: bytes | memoryview) -> av.Packet[Any]:
    """Returns a packet with memory of its own, in which zeros follow.

    Decoders read up to 64 bytes behind a packet. One that PyAV makes of a buffer is the buffer itself (18.1), and what
    lies behind decides about macroblocks of MPEG-4.
    """
    import av

    packet = av.Packet(len(content))
    packet.update(content)  # type: ignore[arg-type]  # any buffer
    return packet
