"""Decodes files of sound that a format delivers whole: members of tars, columns, files of class folders."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from streamer.decode.media.audio import Wave, decode_audio, joined_frames
from streamer.decode.media.contexts import check_installed
from streamer.errors import ConfigError, ManifestError
from streamer.formats.audio.index import read_recording
from streamer.formats.audio.recode import record_of
from streamer.formats.audio.sounds import Recording
from streamer.formats.reading import Reading
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Answer, Source

# How far apart places are looked for in files whose frames say where they are.
_STRETCH_BYTES = 256 << 10


@dataclass(frozen=True)
class AudioClip:
    """Reads an encoded file of sound, or a window of it.

        StreamingDataset(url, decode={"flac": AudioClip()})

    The value of the field is a dict as the fields of `Audio`: "audio", float32 [channels, n] from -1 to 1,
    "sample_rate" and "start_seconds". WAV needs no other library; other files need PyAV, which reads what FFmpeg does.

    Attributes:
        seconds: length of the window, filled with zeros where the file is shorter; None: the whole file.
        start: where the window begins, in seconds; "random": anywhere, drawn anew in each epoch.

    Raises:
        ConfigError: an invalid value.
    """

    seconds: float | None = None
    start: float | Literal["random"] = 0.0
    # The loader seeds generators that decoders hold, for each sample.
    _draws: np.random.Generator | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"AudioClip: seconds={self.seconds} is not positive", field="decode")
        is_drawn = self.start == "random"
        if not is_drawn and not (isinstance(self.start, int | float) and self.start >= 0):
            raise ConfigError(f"AudioClip: start={self.start!r} is neither a time nor 'random'", field="decode")
        if is_drawn and self.seconds is None:
            raise ConfigError("AudioClip: a whole file does not begin at random: give seconds", field="decode")
        object.__setattr__(self, "_draws", np.random.default_rng(0) if is_drawn else None)

    def __call__(self, content: bytes | memoryview) -> dict[str, object]:
        """Returns samples, rate and where they begin."""
        whole = memoryview(content)
        source = Source(ObjectRecord("", len(whole), ""), chunk_bytes=_STRETCH_BYTES)
        try:
            recording = _answered(read_recording(source), whole)
        except ManifestError:
            wave, rate = _decode_file(whole)
            start, stop, length = self._window(wave.shape[1], rate)
            found = np.pad(wave[:, start:stop], ((0, 0), (0, length - (stop - start))))
        else:
            rate = recording.sound.rate
            start, stop, length = self._window(recording.total, rate)
            found = decode_audio(memoryview(record_of(recording, whole, start, stop, length)))
        return {"audio": found, "sample_rate": rate, "start_seconds": start / rate}

    def _window(self, total: int, rate: int) -> tuple[int, int, int]:
        """The first sample of the window, the one behind its last that there is, and its length."""
        length = total if self.seconds is None else max(1, round(self.seconds * rate))
        if self._draws is not None:
            start = int(self._draws.integers(max(0, total - length) + 1))
        else:
            start = min(total, round(float(self.start) * rate))
        if self.seconds is None:
            length -= start
        return start, min(total, start + length), length


def _answered(steps: Reading[Recording], content: memoryview) -> Recording:
    answer: Answer = None
    while True:
        try:
            item = steps.send(answer)
        except StopIteration as end:
            found: Recording = end.value
            return found
        parts = tuple(content[need.start : need.stop] for need in (item if isinstance(item, tuple) else (item,)))
        answer = parts if isinstance(item, tuple) else parts[0]


def _decode_file(content: memoryview) -> tuple[Wave, int]:
    """Decodes the first sound of a file of any kind; raises ValueError if it has none."""
    check_installed()
    import av

    with av.open(io.BytesIO(content), "r") as file:
        if not file.streams.audio:
            raise ValueError("it has no sound")
        stream = file.streams.audio[0]
        stream.codec_context.thread_count = 1
        return joined_frames(list(file.decode(stream)), stream.channels), stream.rate
