"""Decodes windows of sound: float32 [channels, samples] from -1 to 1."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamer.decode.media.contexts import check_codecs, context_of, packet_of
from streamer.decode.media.decoder import Array, Draws, MediaDecoder, memory_for
from streamer.formats.audio.sounds import PCM, packets_of, split_record
from streamer.formats.media.entries import Codec

if TYPE_CHECKING:
    from av import AudioFrame

Wave = NDArray[np.float32]


class Sound(MediaDecoder):
    """Decodes the windows of `Audio`; those of WAV without a library."""

    def check(self, codecs: Collection[str] = ()) -> None:
        """Raises ConfigError if these codecs need PyAV; see `MediaDecoder`."""
        if codecs:
            check_codecs(codecs)

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Wave:
        """Decodes a record; see `MediaDecoder`."""
        head, pieces = split_record(content)
        start = head.drawn(draws() if draws else None)
        stop = min(start + head.length, head.stop)
        is_pcm = head.sound.name == PCM
        found = numbers(pieces, head.sound) if is_pcm else decoded(packets_of(pieces), head.sound)
        if found.shape[1] < stop - head.first:
            raise ValueError(f"{found.shape[1]} samples are decoded of {stop - head.first}")
        made = memory_for((len(found), head.length), np.float32, out)
        made[:, : stop - start] = found[:, start - head.first : stop - head.first]
        made[:, stop - start :] = 0
        return made


class SoundStart(MediaDecoder):
    """Decodes when windows begin, seconds."""

    needs_pyav = False

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> float:
        """Reads a record; see `MediaDecoder`."""
        head, _ = split_record(content)
        return head.seconds(head.drawn(draws() if draws else None))


def numbers(content: memoryview, sound: Codec) -> Wave:
    """Converts the numbers of a WAV file, as soundfile does."""
    dtype = sound.extradata.decode()
    stored = _of_three_bytes(content) if dtype == "i3" else np.frombuffer(content, dtype)
    wave = np.empty((sound.channels, len(stored) // sound.channels), np.float32)
    scale = {"f": 1.0, "u": 2.0**-7, "i": 2.0 ** (1 - 8 * stored.itemsize)}[stored.dtype.kind]
    np.multiply(stored.reshape(-1, sound.channels).T, scale, out=wave, dtype=np.float32, casting="unsafe")
    if stored.dtype.kind == "u":
        wave -= 1
    return wave


def _of_three_bytes(content: memoryview) -> NDArray[np.int32]:
    wide = np.zeros((len(content) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
    return wide.view("<i4")[:, 0]


def decoded(packets: Sequence[memoryview], sound: Codec) -> Wave:
    """Decodes packets from the first to the last."""
    context = context_of(sound)
    import av

    assert isinstance(context, av.AudioCodecContext)
    frames = [frame for packet in packets for frame in context.decode(packet_of(packet))]
    frames += context.decode(None)
    if frames and frames[0].sample_rate != sound.rate:
        raise ValueError(f"its packets are of {frames[0].sample_rate} Hz, its file says {sound.rate}")
    return joined_frames(frames, sound.channels)


def joined_frames(frames: Sequence[AudioFrame], channels: int) -> Wave:
    """Joins decoded frames."""
    waves = [_wave(frame) for frame in frames]
    return np.concatenate(waves, axis=1) if waves else np.empty((channels, 0), np.float32)


def _wave(frame: AudioFrame) -> Wave:
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype.kind == "i":
        return np.multiply(values, 2.0 ** (1 - 8 * values.itemsize), dtype=np.float32, casting="unsafe")
    return values.astype(np.float32, copy=False)
