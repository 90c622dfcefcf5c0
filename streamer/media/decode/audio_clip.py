"""Decodes audio files that a format delivers whole: members of tars, columns, files of class folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamer.decode.target import Array, Draws
from streamer.errors import ConfigError, ManifestError
from streamer.formats.reading import read_in_memory
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Source
from streamer.media.audio.index import read_recording
from streamer.media.audio.recode import record_of
from streamer.media.containers.clips import draw_numbers
from streamer.media.decode.audio import Wave, WindowAudio, join_frames, take_frames
from streamer.media.decode.decoder import Deadline, MediaDecoder, check_library, check_seconds
from streamer.media.decode.video_packets import open_container

# How far apart places are looked for in files whose frames say where they are.
_STRETCH_BYTES = 256 << 10
# FFmpeg (8.0) takes their bits in WAV and AU in another order than libsndfile.
_G726 = frozenset(["g726", "g726le"])


@dataclass(frozen=True)
class AudioClip(MediaDecoder):
    """Reads an encoded audio file, or a window of it.

        StreamingDataset(url, decode={"flac": AudioClip()})

    The value of the field is a dict as the fields of `Audio`: "audio", float32 [channels, n] from -1 to 1,
    "sample_rate" and "start_seconds". WAV needs no other library; other files need PyAV, which reads what FFmpeg does.

    Attributes:
        seconds: length of the window, filled with zeros where the file is shorter; None: the whole file.
        start: where the window begins, in seconds; "random": anywhere, drawn anew in each epoch.

    Raises:
        ConfigError: an invalid value.
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
        """Returns samples, rate and where they begin; see `MediaDecoder`."""
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
        """The first sample of the window, the one behind its last that there is, and its length."""
        length = total if self.seconds is None else max(1, round(self.seconds * rate))
        if self.start == "random":
            start = int(draw_numbers(max(0, total - length) + 1, draws() if draws else None))
        else:
            start = min(total, round(float(self.start) * rate))
        if self.seconds is None:
            length -= start
        return start, min(total, start + length), length


def _decode_file(content: memoryview) -> tuple[Wave, int]:
    """Decodes the first audio of a file of any kind; raises ValueError if it has none, or none that is decoded."""
    check_library()
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
            # FFmpeg (8.0) drops samples of the last packet that it does not have (mRemainderFrames).
            stream.codec_context.options = {"flags2": "skip_manual"}
        frames = take_frames(file.decode(stream), deadline)
        if not frames and stream.duration != 0:
            raise ValueError("no packet of its audio can be decoded: its header is damaged, or it is cut off")
        # The head of AAC may say half the rate of what is decoded.
        rate = frames[0].sample_rate if frames else stream.rate
        return join_frames(frames, stream.channels), rate
