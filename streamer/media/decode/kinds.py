"""Decoders of the kinds of clips and audio. Their modules are imported here: most workers decode none."""

from __future__ import annotations

from streamer.media.audio.window_records import AUDIO, START
from streamer.media.decode.decoder import MediaDecoder
from streamer.media.lerobot.depth import DEPTH, read_kind


def find_decoder(kind: str) -> MediaDecoder | None:
    """Returns the decoder of a kind; None if there is none. See `streamer.decode.kinds`."""
    if kind in (AUDIO, START):
        from streamer.media.decode.audio import WindowAudio, WindowStart

        return WindowAudio() if kind == AUDIO else WindowStart()
    if kind.startswith(DEPTH):
        from streamer.media.decode.depth import DepthFrames

        return DepthFrames(depth=read_kind(kind))
    from streamer.media.decode.video import CLIP_DECODERS

    return CLIP_DECODERS[kind]() if kind in CLIP_DECODERS else None
