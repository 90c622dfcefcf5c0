"""Audio files in memory for tests, encoded by PyAV or the standard library, and their decoding as a whole."""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping

import av
import numpy as np

from streamer.media.decode.audio import join_frames

RATE = 8_000
# Of the encoder of AAC, which else leaves bands to be filled with noise that each decoder draws for itself.
NO_NOISE = {"aac_pns": "0"}
LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1"}


def sound(seconds: float, channels: int = 1, rate: int = RATE) -> np.ndarray:
    """Makes int16 [channels, n]: tones and noise."""
    drawn = np.random.default_rng(0)
    time = np.arange(int(seconds * rate)) / rate
    tones = [np.sin(2 * np.pi * 300 * (channel + 1) * time * (1 + 0.1 * np.sin(time))) for channel in range(channels)]
    return (6_000 * np.array(tones) + drawn.normal(0, 300, (channels, len(time)))).astype("<i2")


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(len(samples))
        out.setsampwidth(samples.itemsize)
        out.setframerate(rate)
        out.writeframes(samples.T.tobytes())
    return file.getvalue()


def encoded(
    codec: str,
    container: str,
    samples: np.ndarray,
    rate: int = RATE,
    movie: Mapping[str, str] | None = None,
    noise: bool = False,
    **options: int,
) -> bytes:
    """Returns what PyAV writes; `movie` are options of the container, `noise`: AAC may let decoders draw noise."""
    file, layout = io.BytesIO(), LAYOUTS[len(samples)]
    with av.open(file, "w", format=container, options=dict(movie or {})) as out:
        more = {} if noise or codec != "aac" else NO_NOISE
        # FFmpeg's encoder of Vorbis, of two channels.
        more |= {"strict": "experimental"} if codec == "vorbis" else {}
        stream = out.add_stream(codec, rate=rate, layout=layout, options=more)
        for name, value in options.items():
            setattr(stream, name, value)
        resampler = av.AudioResampler(stream.format, layout, rate)
        frame = av.AudioFrame.from_ndarray(samples.T.reshape(1, -1), format="s16", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        frames = resampler.resample(frame)
        buffer = av.AudioFifo()
        for each in frames:
            buffer.write(each)
        size = stream.codec_context.frame_size or 1024
        while (piece := buffer.read(size, partial=True)) is not None:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return file.getvalue()


def decoded(content: bytes) -> tuple[np.ndarray, int]:
    """Returns all samples of a file, as PyAV reads it, and their rate."""
    with av.open(io.BytesIO(content)) as file:
        frames = list(file.decode(file.streams.audio[0]))
        return join_frames(frames, 1), frames[0].sample_rate


def flac(seconds: float = 3, channels: int = 2) -> bytes:
    return encoded("flac", "flac", sound(seconds, channels))


def mp3(seconds: float = 6, rate: int = RATE) -> bytes:
    return encoded("libmp3lame", "mp3", sound(seconds, 1, rate), rate, bit_rate=32_000)


def opus(seconds: float = 3) -> bytes:
    return encoded("libopus", "ogg", sound(seconds, 2, 48_000), 48_000, bit_rate=64_000)


def vorbis(seconds: float = 3) -> bytes:
    # Else pages are a second.
    return encoded("vorbis", "ogg", sound(seconds, 2, 48_000), 48_000, {"page_duration": "100000"})


def m4a(seconds: float = 3, codec: str = "aac", container: str = "ipod", **movie: str) -> bytes:
    return encoded(codec, container, sound(seconds, 2, 48_000), 48_000, movie, bit_rate=96_000)
