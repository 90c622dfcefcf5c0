"""Decodes audio, windows and whole files, to float32 [channels, samples] from -1 to 1.

`media/decode/__init__.py` finds the decoders of windows, and users name `AudioClip`. `video.py` decodes the audio of
clips with `decode_packets`. A "sample" here is a value of each channel at one time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamer.decode.base import Array, Draws
from streamer.errors import ConfigError, ManifestError
from streamer.formats.reading import read_in_memory
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Source
from streamer.media.audio.index import read_recording
from streamer.media.audio.recode import record_of
from streamer.media.audio.windows import PCM, packets_of, split_record
from streamer.media.containers.clips import draw_numbers
from streamer.media.containers.entries import TrackCodec
from streamer.media.decode.decoder import (
    Deadline,
    MediaDecoder,
    check_codecs,
    check_seconds,
    context_of,
    import_pyav,
    memory_for,
    packet_of,
)
from streamer.media.decode.video_packets import open_container

if TYPE_CHECKING:
    from av import AudioFrame

Wave = NDArray[np.float32]

# PyAV looks for the planes of a frame up to a pointer that is 0. After the eighth plane there is no such pointer, and
# to_ndarray reads other memory (18.1).
_MAX_PLANES = 8
# Longer audio is refused: this is 6 hours of 48 kHz in stereo. A frame of 40 bytes of FLAC may be 2 MB of zeros.
_MAX_WAVE_BYTES = 8 << 30


class WindowAudio(MediaDecoder):
    """Decodes the windows of `Audio`. Those of WAV need no library."""

    def check(self, codecs: Collection[str] = ()) -> None:
        """Raises ConfigError if PyAV is not installed or has no decoder for one of these codecs; see `MediaDecoder`."""
        if codecs:
            check_codecs(codecs)

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> Wave:
        """Decodes the record of a window; see `TargetDecoder.decode`. Zeros follow where the recording ends earlier.

        Raises:
            ConfigError: PyAV is needed and not installed, or has no such decoder.
            DecodeError, ValueError, struct.error, av.FFmpegError: the record or its packets are damaged.
        """
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
    """Decodes when windows begin, in seconds."""

    needs_pyav = False

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> float:
        """Returns when the window of a record begins; equal `draws` give the window of `WindowAudio`.

        Raises:
            DecodeError: the record is damaged.
        """
        head, _ = split_record(content)
        return head.seconds(head.draw(draws() if draws else None))


def numbers(content: memoryview, audio: TrackCodec) -> Wave:
    """Converts PCM values as soundfile does.

    Args:
        content: the values, those of all channels one after the other for each sample.
        audio: their dtype (as `extradata`), and the number of channels.
    """
    dtype = audio.extradata.decode()
    stored: NDArray[Any]
    if dtype.endswith("i3"):
        wide = np.zeros((len(content) // 3, 4), np.uint8)
        is_big = dtype.startswith(">")
        wide[:, slice(0, 3) if is_big else slice(1, 4)] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        stored = wide.view(">i4" if is_big else "<i4")[:, 0]
    else:
        stored = np.frombuffer(content, dtype)
    wave = np.empty((audio.channels, len(stored) // audio.channels), np.float32)
    scale = {"f": 1.0, "u": 2.0**-7, "i": 2.0 ** (1 - 8 * stored.itemsize)}[stored.dtype.kind]
    np.multiply(stored.reshape(-1, audio.channels).T, scale, out=wave, dtype=np.float32, casting="unsafe")
    if stored.dtype.kind == "u":
        wave -= 1
    return wave


def decode_packets(packets: Sequence[memoryview], audio: TrackCodec) -> Wave:
    """Decodes packets from the first to the last, and returns all samples: float32 [channels, samples].

    Raises:
        ConfigError: PyAV is not installed, or has no such decoder.
        ValueError: the packets take too much time or memory, or change rate or channels.
        av.FFmpegError: the packets are damaged.
    """
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
    """Collects frames as they are decoded.

    Raises:
        ValueError: the frames take too much time or memory.
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
    """Joins decoded frames to one array.

    Args:
        frames: the frames in their order.
        channels: number of channels of the array if there are no frames.
        rate: rate that the file says, samples a second. None allows any rate that all frames have.

    Raises:
        ValueError: a frame has another rate or number of channels than those before it, or another rate than `rate`.
    """
    if not frames:
        return np.empty((channels, 0), np.float32)
    for each in {frame.sample_rate for frame in frames}:
        if rate is not None and each != rate:
            raise ValueError(f"its packets are of {each} Hz, its file says {rate}")
        if each != frames[0].sample_rate:
            raise ValueError(_change("rate", f"{frames[0].sample_rate} to {each} Hz"))
    resampler = None
    waves = []
    for frame in frames:
        packed = frame
        count = frame.layout.nb_channels
        if frame.format.is_planar and count >= _MAX_PLANES:
            import av

            # The packed form of the same type has the same values.
            resampler = resampler or av.AudioResampler(frame.format.packed.name)
            (packed,) = resampler.resample(frame)
        values = packed.to_ndarray()
        if not packed.format.is_planar:
            values = values.reshape(-1, count).T
        wave: Wave
        if values.dtype.kind == "f":
            wave = values.astype(np.float32, copy=False)
        else:
            wave = np.multiply(values, 2.0 ** (1 - 8 * values.itemsize), dtype=np.float32, casting="unsafe")
            if values.dtype.kind == "u":
                # FFmpeg gives 8 bits as unsigned numbers, however they are stored.
                wave -= 1
        waves.append(wave)
    for wave in waves:
        if len(wave) != len(waves[0]):
            raise ValueError(_change("number of channels", f"{len(waves[0])} to {len(wave)}"))
    return np.concatenate(waves, axis=1)


def _change(what: str, how: str) -> str:
    return f"its {what} changes from {how} within it, as where files were joined: store each part as a file of its own"


# The index of a whole file notes a place in each stretch of so many bytes.
_STRETCH_BYTES = 256 << 10
# These codecs are refused: FFmpeg (8.0) takes their bits in WAV and AU in another order than libsndfile.
_G726 = frozenset(["g726", "g726le"])


@dataclass(frozen=True)
class AudioClip(MediaDecoder):
    """Reads an encoded audio file, or a window of it.

        StreamingDataset(url, decode={"flac": AudioClip()})

    The value of the field is a dict as the fields of `Audio`: "audio", float32 [channels, n] from -1 to 1,
    "sample_rate" and "start_seconds". WAV of PCM needs no library; PyAV reads most other files that FFmpeg does.

    Attributes:
        seconds: length of the window, filled with zeros where the file is shorter. None means the file from `start` on.
        start: where the window begins, in seconds. "random" begins it anywhere, drawn anew in each epoch.

    Raises:
        ConfigError: a value is invalid.
    """

    needs_pyav = False
    seconds: float | None = None
    start: float | Literal["random"] = 0.0

    def __post_init__(self) -> None:
        if self.seconds is not None:
            check_seconds("AudioClip", "seconds", self.seconds)
        is_drawn = self.start == "random"
        if isinstance(self.start, str) and not is_drawn:
            raise ConfigError(f"AudioClip: start={self.start!r} is neither a time nor 'random'", field="decode")
        if not is_drawn:
            check_seconds("AudioClip", "start", self.start, zero=True)
        if is_drawn and self.seconds is None:
            raise ConfigError("AudioClip: a whole file does not begin at random: give seconds", field="decode")

    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> dict[str, object]:
        """Returns a dict of samples, rate and where they begin, in memory of its own; see `TargetDecoder.decode`.

        Raises:
            ConfigError: PyAV is needed and not installed.
            ValueError, av.FFmpegError: the file is damaged, of a kind that is not decoded, or takes too long.
        """
        source = Source(ObjectRecord("", len(content), ""), chunk_bytes=_STRETCH_BYTES)
        try:
            recording = read_in_memory(read_recording(source), content)
        except ManifestError:
            wave, rate = _decode_file(content)
            start, stop, length = self._window(wave.shape[1], rate, draws)
            found = np.pad(wave[:, start:stop], ((0, 0), (0, length - (stop - start))))
        else:
            rate = recording.audio.rate
            start, stop, length = self._window(recording.total, rate, draws)
            found = WindowAudio().decode(
                memoryview(record_of(recording=recording, content=content, start=start, stop=stop, length=length))
            )
        return {"audio": found, "sample_rate": rate, "start_seconds": start / rate}

    def _window(self, total: int, rate: int, draws: Draws | None) -> tuple[int, int, int]:
        """Chooses the window in a file of `total` samples.

        Returns:
            The first sample of the window, the one after the last that the file has of it, and the window's length.
        """
        length = total if self.seconds is None else max(1, round(self.seconds * rate))
        if self.start == "random":
            start = int(draw_numbers(max(0, total - length) + 1, draws() if draws else None))
        else:
            start = min(total, round(float(self.start) * rate))
        if self.seconds is None:
            length -= start
        return start, min(total, start + length), length


def _decode_file(content: memoryview) -> tuple[Wave, int]:
    """Decodes the first audio track of a file that FFmpeg reads; returns it with its rate.

    Raises:
        ConfigError: PyAV is not installed.
        ValueError: the file has no audio, or none that is decoded.
        av.FFmpegError: the file is damaged.
    """
    import_pyav()
    import av

    deadline = Deadline(len(content))
    with open_container(content, deadline) as file:
        if not file.streams.audio:
            raise ValueError("it has no audio")
        stream = file.streams.audio[0]
        # The context is None where FFmpeg has no decoder, whatever its type says.
        if not isinstance(stream.codec_context, av.AudioCodecContext):
            raise ValueError(
                "the FFmpeg of PyAV has no decoder of its audio: its head is damaged, or its codec unknown"
            )
        if stream.codec_context.name in _G726:
            raise ValueError(
                "its audio is G.721, G.723 or G.726, of which FFmpeg makes other values than its encoders: convert it"
            )
        stream.codec_context.thread_count = 1
        if (file.format.name, stream.codec_context.name) == ("caf", "alac"):
            # FFmpeg (8.0) drops as many samples at the end as mRemainderFrames says, which the last packet does not
            # have in the first place.
            stream.codec_context.options = {"flags2": "skip_manual"}
        frames = take_frames(file.decode(stream), deadline)
        if not frames and stream.duration != 0:
            raise ValueError("no packet of its audio can be decoded: its header is damaged, or it is cut off")
        # The head of AAC may say half the rate of what is decoded.
        rate = frames[0].sample_rate if frames else stream.rate
        return join_frames(frames, stream.channels), rate
