"""Provides what decoders of videos and audio share: limits of time and memory, and contexts and packets of PyAV.

All modules of `media/decode/` but `rgb.py` use it. It imports PyAV only when it is needed.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streamer.base.extras import require_extra, require_modules
from streamer.decode.base import Array, TargetDecoder
from streamer.errors import ConfigError
from streamer.media.containers.entries import TrackCodec

if TYPE_CHECKING:
    import av

# Decoding a sample may take so much CPU time. A clip of a video of 1920x1080 takes some 0.1 s. A full decode, where
# nothing else says the order of frames, makes about 20,000 frames of 1280x720 in this time (2026-11-28).
MAX_SECONDS = 60.0
# So much time is added for every MB of a file: an hour of 1920x1080 at 100 kbit/s is 45 MB, and takes some 400 s to
# decode. The length in a header does not count, because a crafted file may say anything.
_SECONDS_PER_MB = 10.0
# Larger frames are refused, since FFmpeg would take as much memory as a damaged header says. Frames of 8K are smaller.
_MAX_PIXELS = 64 << 20


class MediaDecoder(TargetDecoder):
    """Decodes a field of frames or audio. Subclasses say in their docstrings what `decode` returns.

    Attributes:
        needs_pyav: whether decoding needs PyAV.
    """

    needs_pyav: ClassVar[bool] = True

    def check(self, codecs: Collection[str] = ()) -> None:
        """Checks that this machine can decode; imports PyAV only if codecs are given.

        Args:
            codecs: FFmpeg's names of the codecs of a dataset.

        Raises:
            ConfigError: PyAV is needed and not installed, or has no decoder for one of these codecs.
        """
        if self.needs_pyav:
            # PyAV is not imported without codecs, which takes 60 MB: this may be the process of the training.
            require_modules(_PURPOSE, "video", "av", field="decode")
            check_codecs(codecs)


def check_seconds(decoder: str, name: str, value: object, *, zero: bool = False) -> None:
    """Checks an option that is a number of seconds.

    Args:
        decoder: name of the decoder, for the error.
        name: name of the option.
        value: the value.
        zero: whether 0 is allowed.

    Raises:
        ConfigError: the value is not a finite number above 0, nor 0 where that is allowed.
    """
    if (
        not isinstance(value, int | float | np.integer | np.floating)
        or not 0 <= value < math.inf
        or (value == 0 and not zero)
    ):
        rule = "a time from 0 on" if zero else "a positive number"
        raise ConfigError(f"{decoder}: {name}={value!r} is not {rule}, finite and in seconds", field="decode")


def memory_for(shape: tuple[int, ...], dtype: type[np.generic], out: Array | None) -> Array:
    """Returns `out` if it has this shape and type, else a new array, whose values are not set."""
    fits = out is not None and out.shape == shape and out.dtype == dtype
    return out if fits and out is not None else np.empty(shape, dtype)


class Deadline:
    """Limits the time that the decoding of one sample takes, from now on.

    CPU time of the thread counts, in which FFmpeg decodes, so nothing is refused because a machine is busy.

    Args:
        stored_bytes: length of what is decoded in bytes. More bytes have more time.
    """

    def __init__(self, stored_bytes: int = 0) -> None:
        self._seconds = MAX_SECONDS + _SECONDS_PER_MB * stored_bytes / 1e6
        self._end = time.thread_time() + self._seconds
        self._earliest_end = time.monotonic() + self._seconds

    def check(self) -> None:
        """Raises ValueError once the time is used up."""
        # A thread has used no more CPU time than time has passed. That is asked first, because it is no system call,
        # and this is called for each packet and frame.
        if time.monotonic() > self._earliest_end and time.thread_time() > self._end:
            raise ValueError(
                f"decoding takes more than {self._seconds:.3g} s of CPU: the file is damaged or crafted, or it is long "
                "and has to be cut, or converted so that clips of it are decoded alone (ffmpeg -i FILE OUT.mp4, audio "
                "as OUT.flac)"
            )


class LimitedReader(io.BytesIO):
    """Reads bytes for FFmpeg's demuxers, until the deadline.

    Args:
        content: the bytes of a file, which are copied.
        deadline: limit of the time.
    """

    def __init__(self, content: memoryview, deadline: Deadline) -> None:
        super().__init__(content)
        self._deadline = deadline

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads at most `size` bytes, or all if it is negative; raises ValueError after the deadline."""
        self._deadline.check()
        return super().read(size)


_PURPOSE = "decoding videos and compressed audio"


def import_pyav() -> None:
    """Imports PyAV, before the first `import av` of a function; raises ConfigError if it is not installed."""
    with require_extra(_PURPOSE, field="decode"):
        import av  # noqa: F401


def check_codecs(names: Collection[str]) -> None:
    """Raises ConfigError if one of these codecs (FFmpeg's names) has no decoder in PyAV, or that is not installed."""
    if not names:
        return
    import_pyav()
    import av

    for name in names:
        try:
            av.Codec(name, "r")
        except ValueError as error:
            raise ConfigError(
                f"this PyAV ({av.__version__}) has no decoder {name!r}: its wheels have it, pip install -U av",
                field="decode",
            ) from error


def context_of(codec: TrackCodec) -> av.VideoCodecContext | av.AudioCodecContext:
    """Opens a decoder of FFmpeg (a context) with these parameters, for one sample.

    No context is used for a second sample. It keeps what packets bring, such as parameter sets, quantisers and Huffman
    tables, also after `flush_buffers`. Those of AAC draw noise, and those of h264 learn how far frames are reordered. A
    new one takes 0.1 ms, and for videos of 1280x720 some ms more for its 25 MB (2026-11-28).

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
    """Sets one thread and a limit of pixels in a context that is not open yet."""
    # Threads of FFmpeg hang when decoding ends early, and do not survive a fork.
    context.thread_count = 1
    context.options = {"max_pixels": str(_MAX_PIXELS)}


def packet_of(content: bytes | memoryview) -> av.Packet[Any]:
    """Returns a packet of PyAV with a copy of these bytes, and zeros after them.

    Decoders read up to 64 bytes after a packet, and in MPEG-4 these bytes change frames. A packet that PyAV (18.1)
    makes of a buffer is no copy, so other data would follow.
    """
    import av

    packet = av.Packet(len(content))
    packet.update(content)  # type: ignore[arg-type]  # any buffer
    return packet
