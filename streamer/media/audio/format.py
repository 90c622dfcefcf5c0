"""Defines the format `Audio`: windows out of long recordings in WAV, RF64, FLAC, MP3, Ogg, m4a, mp4 and mov.

The registry of formats (`formats/`) has it. The engine surveys, indexes and recodes with it, workers open samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Annotated, ClassVar, Literal

import msgspec

from streamer.formats.base import Facts, Field, FieldSpec, Format, SampleName
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Short, Source, Survey, Surveying
from streamer.media.audio.flac import PROBE_BYTES
from streamer.media.audio.index import HEAD_BYTES, BlockNote, cut_blocks, read_recording
from streamer.media.audio.recode import AudioRecoder
from streamer.media.audio.windows import AUDIO, PCM, START, TIME_MARK, Windows, split_record

_RATE = Struct("<i")
_FIELDS = (FieldSpec("audio", AUDIO), FieldSpec("sample_rate", "<i4"), FieldSpec("start_seconds", START))
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Audio(Format, frozen=True, forbid_unknown_fields=True):
    """Recordings: a sample is a window of them, exact to the audio sample.

        StreamingDataset(url, format=Audio(seconds=10.0))

    Its fields are "audio", float32 [channels, n] from -1 to 1, "sample_rate" and "start_seconds". Rate and channels are
    those of the file. The key is the path with the window, "a.wav#t=10,20", or with all that a random window may have.

    Attributes:
        seconds: length of a window.
        seconds_between_starts: seconds from the beginning of a window to that of the next. None means that windows
            follow each other without gaps.
        start: "grid" begins windows at these times. "random" begins each anywhere from its time to the next one, drawn
            anew in each epoch.
        at_end: "drop" leaves out what is shorter than a window, the end of a recording or all of it. "pad" fills such
            a window with zeros.
        stream_index: number of the track in mp4, m4a and mov. None means the first one with audio.
    """

    name = "audio"
    part_mark = TIME_MARK
    stored_names: ClassVar[Mapping[str, str]] = {"at_end": "policy"}
    endings = (".wav", ".flac", ".mp3", ".opus", ".ogg", ".m4a", ".m4b", ".mp4", ".m4v", ".mov")
    seconds: _Seconds = 10.0
    seconds_between_starts: _Seconds | None = None
    start: Literal["grid", "random"] = "grid"
    at_end: Literal["drop", "pad"] = "drop"
    stream_index: int | None = None

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Takes all recordings without reading them; see `Format.survey`."""
        yield from ()
        return Survey([Source(record) for record in accepted], Facts(_FIELDS), sum(map(_estimate_read_bytes, accepted)))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Yields the blocks of the windows of a recording, or `Short` if it has none; see `Format.index`.

        Raises:
            ManifestError: the file is damaged, of a kind that is not read, or has too many windows for its bytes.
        """
        recording = yield from read_recording(source, self.stream_index)
        rate = recording.audio.rate
        step_seconds = self.seconds if self.seconds_between_starts is None else self.seconds_between_starts
        length, step = (max(1, round(rate * seconds)) for seconds in (self.seconds, step_seconds))
        windows = Windows.cut(recording.total, length, step, pad=self.at_end == "pad", random=self.start == "random")
        if not windows.count:
            yield Short(
                recording.total / rate, f"seconds, windows have {self.seconds:g}", "at_end='pad' fills them with zeros"
            )
        yield from cut_blocks(source, recording, windows)

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """Returns key and fields of a window from its record, of which "audio" is decoded later; see `Format.open`."""
        head, _ = split_record(content)
        begin, end = (f"{head.seconds(sample):.6f}".rstrip("0").rstrip(".") for sample in (head.start, head.stop))
        return f"{head.path}{TIME_MARK}{begin},{end}", [
            Field("audio", content, AUDIO),
            Field("sample_rate", memoryview(_RATE.pack(head.audio.rate)), "<i4"),
            Field("start_seconds", content, START),
        ]

    def recoder(self, facts: Facts) -> AudioRecoder:
        """Returns what makes the records of windows; see `Format.recoder`."""
        return AudioRecoder()

    def find_codecs(self, hint: bytes) -> list[str]:
        """Returns the codec of the recording, or [] if it is PCM; see `Format.find_codecs`."""
        name = msgspec.msgpack.decode(hint, type=BlockNote).audio.name
        return [] if name == PCM else [name]


def _estimate_read_bytes(record: ObjectRecord) -> int:
    """Returns about how many bytes the index reads, with chunks of 8 MiB and no images in the head of the file."""
    name = record.url.lower()
    if name.endswith((".mp3", ".wav")):
        return HEAD_BYTES + (record.size if name.endswith(".mp3") else min(record.size, HEAD_BYTES))
    return HEAD_BYTES + 4 * min(record.size, PROBE_BYTES) + record.size // 100
