"""Makes records of windows: those of a block, or that of one window of a whole file.

Recoders run `AudioRecoder`, which the format `Audio` names (`format.py`). `AudioClip` calls `record_of` in workers
(`media/decode/audio.py`). Nothing is decoded here. A "sample" here is a value of each channel at one time, and a window
is a sample of the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from streamer.errors import RecodeError
from streamer.formats.base import Records
from streamer.formats.failures import DamagedError
from streamer.media.audio import flac, ogg
from streamer.media.audio.index import BlockNote
from streamer.media.audio.recordings import AudioFrames, Recording, Units
from streamer.media.audio.wav import width_of
from streamer.media.audio.windows import PCM, Integers, WindowHeader, Windows, cut_parts, encode_head

_NOTE = msgspec.msgpack.Decoder(BlockNote)


class Numbers:
    """The samples of a block of a WAV file: each is a unit of its own (see `Units`).

    Args:
        content: bytes of the block.
        note: hint of the block.
    """

    def __init__(self, content: memoryview, note: BlockNote) -> None:
        self._content = content
        self._width = width_of(note.audio)
        # Index of the first sample of each range of the object.
        firsts = [note.first + (start - note.ranges[0][0]) // self._width for start, _ in note.ranges]
        self._firsts = np.array(firsts)
        self._samples = [(stop - start) // self._width for start, stop in note.ranges]
        self._places = np.cumsum([0, *(count * self._width for count in self._samples)])

    def between(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """Returns the samples themselves, which are the units."""
        return starts, stops

    def first(self, unit: int) -> int:
        """Returns the sample itself, which is the unit."""
        return unit

    def piece(self, begin: int, end: int) -> memoryview:
        """Returns the PCM values of samples `[begin, end)`; raises DamagedError unless one range has all of them."""
        held = int(np.searchsorted(self._firsts, begin, "right")) - 1
        if held < 0 or end > self._firsts[held] + self._samples[held]:
            raise DamagedError(f"samples {begin} to {end} are not in its ranges")
        at = int(self._places[held] + (begin - self._firsts[held]) * self._width)
        return self._content[at : at + (end - begin) * self._width]


# Functions, by codec, that find the units in the bytes of a block whose hint does not list them.
_UNITS: dict[str, Callable[[memoryview, BlockNote], Units]] = {
    PCM: Numbers,
    "flac": lambda content, note: flac.frames_of(content, note.audio, note.first),
    "opus": lambda content, note: ogg.frames_of(content, note.first, note.audio),
    "vorbis": lambda content, note: ogg.frames_of(content, note.first, note.audio),
}


class AudioRecoder:
    """Makes records of windows: encoded units are copied, not decoded."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes the records of the windows of a block.

        Args:
            content: bytes of the block.
            samples: number of its windows.
            hint: its encoded `BlockNote`.

        Raises:
            RecodeError: the hint does not fit the bytes, or either is damaged.
        """
        try:
            note = _NOTE.decode(hint)
            if (len(content), samples) != (note.fetch_bytes, note.windows.count):
                raise DamagedError(f"its hint is of {note.windows.count} windows in {note.fetch_bytes} bytes")
            units = units_of(content, note)
            windows = note.windows
            starts = windows.starts
            stops = windows.stops
            lower, upper = units.between(starts, stops)
            begin, end, ranges = cut_parts(lower, upper)
            pieces = [units.piece(*edges) for edges in zip(begin.tolist(), end.tolist(), strict=True)]
            spans = zip(lower.tolist(), starts.tolist(), stops.tolist(), windows.places.tolist(), strict=True)
            heads = [
                encode_head(
                    WindowHeader(
                        path=note.path,
                        audio=note.audio,
                        first=units.first(first),
                        start=start,
                        stop=stop,
                        length=windows.length,
                        places=places,
                        played_at=note.played_at,
                    )
                )
                for first, start, stop, places in spans
            ]
            return Records(
                parts=heads,
                lengths=_lengths(heads),
                shared_parts=pieces,
                part_lengths=_lengths(pieces),
                part_ranges=ranges,
            )
        except (ValueError, DamagedError, KeyError) as error:
            raise RecodeError(f"{samples} windows are not in these {len(content)} bytes: {error}") from error


def record_of(recording: Recording, content: memoryview, start: int, stop: int, length: int) -> bytes:
    """Makes the record of one window out of a whole file.

    Args:
        recording: where the samples of the file are.
        content: all bytes of the file.
        start: first sample of the window.
        stop: sample after its last one. If it is `start`, the record has no audio.
        length: number of samples that decoding returns; zeros follow where the window has fewer.

    Raises:
        DamagedError: the samples are not where the recording says.
    """
    head = WindowHeader(
        path="",
        audio=recording.audio,
        first=start,
        start=start,
        stop=stop,
        length=length,
        played_at=recording.played_at,
    )
    if start == stop:
        return encode_head(head)
    edges = np.array([start]), np.array([stop])
    begin, end = (int(place[0]) for place in recording.bounds(*edges))
    windows = Windows(total=recording.total, length=stop - start, step=1, first=start, count=1)
    note = BlockNote.write("", recording, windows, ((begin, end),))
    units = units_of(content[begin:end], note)
    lower, upper = (int(place[0]) for place in units.between(*edges))
    head = msgspec.structs.replace(head, first=units.first(lower))
    return b"".join([encode_head(head), units.piece(lower, upper)])


def units_of(content: memoryview, note: BlockNote) -> Units:
    """Returns the units of a block by its hint; raises DamagedError, or KeyError for a codec without units."""
    if note.frames is not None:
        return AudioFrames.read_hint(content, note.first, note.frames)
    return _UNITS[note.audio.name](content, note)


def _lengths(parts: Sequence[bytes | memoryview]) -> Integers:
    return np.fromiter(map(len, parts), np.int64, len(parts))
