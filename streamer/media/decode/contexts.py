"""Codec contexts of PyAV: a new one for each sample, so that none depends on those before it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from streamer.base.extras import require
from streamer.errors import ConfigError
from streamer.media.containers.entries import TrackCodec

if TYPE_CHECKING:
    import av

# Above 8K; FFmpeg would take as much memory as a damaged header says.
_MAX_PIXELS = 64 << 20


def check_library() -> None:
    """Raises ConfigError where PyAV is not installed; imports nothing."""
    require("decoding videos and compressed audio", "video", "av", field="decode")


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
