"""Decodes windows of audio: float32 [channels, samples] from -1 to 1."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamer.decode.target import Array, Draws
from streamer.media.audio.windows import PCM, packets_of, split_record
from streamer.media.containers.entries import TrackCodec
from streamer.media.decode.decoder import Deadline, MediaDecoder, check_codecs, context_of, memory_for, packet_of

if TYPE_CHECKING:
    from av import AudioFrame

Wave = NDArray[np.float32]


# PyAV looks for the planes of a frame up to a pointer that is 0; behind the eighth there is none, and to_ndarray reads
# other memory (18.1).
_MAX_PLANES = 8
# 6 hours of 48 kHz in stereo. A frame of 40 bytes of FLAC may be 2 MB of zeros.
_MAX_WAVE_BYTES = 8 << 30


class WindowAudio(MediaDecoder):
    """Decodes the windows of `Audio`; those of WAV without a library."""

    def check(self, codecs: Collection[str] = ()) -> None:
        """Raises ConfigError if these codecs need PyAV; see `MediaDecoder`."""
        if codecs:
            check_codecs(codecs)

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Wave:
        """Decodes a record; see `MediaDecoder`."""
        head, pieces = split_record(content)
        start = head.draw(draws() if draws else None)
        stop = min(start + head.length, head.stop)
        is_pcm = head.audio.name == PCM
        found = numbers(pieces, head.audio) if is_pcm else decode_packets(packets_of(pieces), head.audio)
        if found.shape[1] < stop - head.first:
            raise ValueError(f"{found.shape[1]} samples are decoded of {stop - head.first}")
        made = memory_for((len(found), head.length), np.float32, out)
        made[:, : stop - start] = found[:, start - head.first : stop - head.first]
        made[:, stop - start :] = 0
        return made


class WindowStart(MediaDecoder):
    """Decodes when windows begin, seconds."""

    needs_pyav = False

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> float:
        """Reads a record; see `MediaDecoder`."""
        head, _ = split_record(content)
        return head.seconds(head.draw(draws() if draws else None))


def numbers(content: memoryview, audio: TrackCodec) -> Wave:
    """Converts the numbers of a WAV file, as soundfile does."""
    dtype = audio.extradata.decode()
    stored = _widen_numbers(content, dtype) if dtype.endswith("i3") else np.frombuffer(content, dtype)
    wave = np.empty((audio.channels, len(stored) // audio.channels), np.float32)
    scale = {"f": 1.0, "u": 2.0**-7, "i": 2.0 ** (1 - 8 * stored.itemsize)}[stored.dtype.kind]
    np.multiply(stored.reshape(-1, audio.channels).T, scale, out=wave, dtype=np.float32, casting="unsafe")
    if stored.dtype.kind == "u":
        wave -= 1
    return wave


def _widen_numbers(content: memoryview, dtype: str) -> NDArray[np.int32]:
    wide = np.zeros((len(content) // 3, 4), np.uint8)
    is_big = dtype.startswith(">")
    wide[:, slice(0, 3) if is_big else slice(1, 4)] = np.frombuffer(content, np.uint8).reshape(-1, 3)
    return wide.view(">i4" if is_big else "<i4")[:, 0]


def decode_packets(packets: Sequence[memoryview], audio: TrackCodec) -> Wave:
    """Decodes packets from the first to the last."""
    context = context_of(audio)
    import av

    assert isinstance(context, av.AudioCodecContext)
    deadline = Deadline(sum(map(len, packets)))

    def decode() -> Iterator[AudioFrame]:
        for packet in packets:
            deadline.check()
            yield from context.decode(packet_of(packet))
        yield from context.decode(None)

    return join_frames(take_frames(decode(), deadline), audio.channels, audio.rate)


def take_frames(decoded: Iterable[AudioFrame], deadline: Deadline) -> list[AudioFrame]:
    """Takes frames as they are decoded.

    Raises:
        ValueError: they take too much time or memory.
    """
    frames = []
    decoded_bytes = 0
    for frame in decoded:
        deadline.check()
        frames.append(frame)
        decoded_bytes += frame.samples * frame.layout.nb_channels * np.dtype(np.float32).itemsize
        if decoded_bytes > _MAX_WAVE_BYTES:
            raise ValueError(
                f"its audio takes more than {_MAX_WAVE_BYTES >> 30} GiB when it is decoded: cut it into files"
            )
    return frames


def join_frames(frames: Sequence[AudioFrame], channels: int, rate: int | None = None) -> Wave:
    """Joins decoded frames.

    Args:
        frames: Frames, in their order.
        channels: Number of channels of the array where there is no frame.
        rate: Rate that the file says; None where any will do that all frames have.

    Raises:
        ValueError: A frame has another rate or other channels than those before it.
    """
    if not frames:
        return np.empty((channels, 0), np.float32)
    for each in {frame.sample_rate for frame in frames}:
        if rate is not None and each != rate:
            raise ValueError(f"its packets are of {each} Hz, its file says {rate}")
        if each != frames[0].sample_rate:
            raise ValueError(_change("rate", f"{frames[0].sample_rate} to {each} Hz"))
    waves = _waves(frames)
    for wave in waves:
        if len(wave) != len(waves[0]):
            raise ValueError(_change("number of channels", f"{len(waves[0])} to {len(wave)}"))
    return np.concatenate(waves, axis=1)


def _change(what: str, how: str) -> str:
    return f"its {what} changes from {how} within it, as where files were joined: store each part as a file of its own"


def _waves(frames: Sequence[AudioFrame]) -> list[Wave]:
    """Converts frames to float32 [channels, samples] each."""
    resampler = None
    waves = []
    for frame in frames:
        packed = frame
        channels = frame.layout.nb_channels
        if frame.format.is_planar and channels >= _MAX_PLANES:
            import av

            # To the packed form of the same type, which keeps every value.
            resampler = resampler or av.AudioResampler(frame.format.packed.name)
            (packed,) = resampler.resample(frame)
        values = packed.to_ndarray()
        if not packed.format.is_planar:
            values = values.reshape(-1, channels).T
        waves.append(_scale(values))
    return waves


def _scale(values: NDArray[np.generic]) -> Wave:
    """Scales decoded numbers to -1 to 1."""
    if values.dtype.kind == "f":
        return values.astype(np.float32, copy=False)
    wave: Wave = np.multiply(values, 2.0 ** (1 - 8 * values.itemsize), dtype=np.float32, casting="unsafe")
    if values.dtype.kind == "u":
        # FFmpeg gives 8 bits as unsigned numbers, however they are stored.
        wave -= 1
    return wave
