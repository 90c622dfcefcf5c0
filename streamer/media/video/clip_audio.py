"""Finds the audio of clips: which packets of an audio track belong to the clips of a video.

The format `Video` makes the hints of blocks with it and gives `find_audio_pieces` to its recoder (`format.py`). The
format `LeRobot` uses `find_clip_codecs`. There is no I/O here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from streamer.errors import RecodeError
from streamer.formats.failures import DamagedError
from streamer.formats.reading import Range
from streamer.media.audio.recordings import AudioFrames, PackedFrames, Packeted
from streamer.media.audio.windows import cut_parts
from streamer.media.containers.blocks import ClipHint
from streamer.media.containers.clips import FrameTable, Samples
from streamer.media.containers.records import ClipAudioHeader
from streamer.media.containers.tables import Integers


class ClipAudioHint(msgspec.Struct, frozen=True, array_like=True):
    """The audio of a block of clips, for the recoder. "Samples" of audio are its values, not those of the dataset.

    Attributes:
        head: the fields about audio that the records of all clips have in common.
        first: index of the first audio sample of the first packet.
        frames: packets of audio in the bytes of the block.
        starts, stops: audio samples `[start, stop)` that each record of the block needs.
    """

    head: ClipAudioHeader
    first: int
    frames: PackedFrames
    starts: list[int]
    stops: list[int]

    def pieces(self, content: memoryview) -> tuple[list[bytes], Integers, list[ClipAudioHeader]]:
        """Returns the audio of the block as `find_audio_pieces`; raises DamagedError if packets are missing."""
        units = AudioFrames.read_hint(content, self.first, self.frames)
        starts = np.array(self.starts)
        stops = np.array(self.stops)
        if not 0 < len(starts) == len(stops) or (starts >= stops).any() or starts.min() < units.firsts[0]:
            raise DamagedError(f"{len(starts)} clips whose audio is not in the packets of a hint")
        lower, upper = units.between(starts, stops)
        begin, end, ranges = cut_parts(lower, upper)
        made = [units.piece(*edges) for edges in zip(begin.tolist(), end.tolist(), strict=True)]
        edges = np.append(0, np.cumsum(list(map(len, made))))
        stored = edges[ranges[:, 0, 1]] - edges[ranges[:, 0, 0]]
        heads = [
            msgspec.structs.replace(self.head, first=units.first(unit), stored=length)
            for unit, length in zip(lower.tolist(), stored.tolist(), strict=True)
        ]
        return made, ranges, heads


def find_audio_pieces(content: memoryview, hint: bytes) -> tuple[list[bytes], Integers, list[ClipAudioHeader]]:
    """Finds the audio of a block.

    Args:
        content: the bytes of the block.
        hint: `ClipHint.audio`.

    Returns:
        The pieces of packets that samples share, the half-open range of pieces of each sample, (samples, 1, 2), and the
        header of each sample's audio.

    Raises:
        RecodeError: the hint is damaged, or the block lacks audio that it names.
    """
    try:
        return msgspec.msgpack.decode(hint, type=ClipAudioHint).pieces(content)
    except (ValueError, DamagedError, OverflowError) as error:
        raise RecodeError(f"the hint of the audio of a block is damaged: {error}") from error


def find_clip_codecs(hint: bytes) -> list[str]:
    """Returns FFmpeg's names of the codecs of a block of clips, of frames and then of audio, from its hint."""
    found = msgspec.msgpack.decode(hint, type=ClipHint)
    if not found.audio:
        return [found.codec.name]
    return [found.codec.name, msgspec.msgpack.decode(found.audio, type=ClipAudioHint).head.codec.name]


class ClipAudio(msgspec.Struct, frozen=True):
    """The audio of all clips of a video, while it is indexed.

    Attributes:
        track: the audio track.
        head: the fields about audio that the records of all clips have in common.
        starts, stops: audio samples `[start, stop)` of the track that each sample of the dataset needs.
    """

    track: Packeted
    head: ClipAudioHeader
    starts: Integers
    stops: Integers

    @classmethod
    def find(cls, track: Packeted, frames: FrameTable, samples: Samples, timescale: int) -> ClipAudio:
        """Finds the audio of the samples of a track of frames.

        All clips get audio of one length: that of their frames at the distance of the pattern, which is in ticks or in
        frames of the median duration.

        Args:
            track: the audio track.
            frames: frames of the video.
            samples: clips of the video.
            timescale: ticks per second of the video's times.

        Raises:
            DamagedError: the audio track is empty.
        """
        if not track.total:
            raise DamagedError("its audio track is empty")
        pattern = samples.pattern
        ticks = pattern.count * (pattern.ticks or pattern.every * float(np.median(frames.duration)))
        head = ClipAudioHeader(track.audio, track.total, round(ticks / timescale * track.audio.rate), track.played_at)
        firsts = [int(row[0]) for row in samples.rows]
        lasts = [
            int(row[draws[-1].sum() - 1] if len(samples.draws) else row[-pattern.count])
            for row, draws in zip(samples.rows, samples.draws or samples.rows, strict=True)
        ]
        begins, ends = (
            np.array([head.begin(int(frames.pts[n]) / timescale) for n in each]) for each in (firsts, lasts)
        )
        # A clip at a time without audio reads one sample of audio, which is not delivered.
        starts = np.clip(begins, 0, track.total - 1)
        return cls(track, head, starts, np.clip(ends + head.length, starts + 1, track.total))

    def bytes_of(self, run: slice) -> tuple[Integers, Integers]:
        """Returns where the audio of each sample of a run begins in the object, and its length in bytes."""
        lower, upper = self.track.bounds(self.starts[run], self.stops[run])
        return lower, upper - lower

    def hint(self, run: slice, ranges: Sequence[Range]) -> tuple[bytes, int, int]:
        """Returns the hint of the audio of a run of samples, the number of parts that they share, and their bytes.

        Args:
            run: the samples of the block.
            ranges: byte ranges of the object that the block has.
        """
        frames = self.track.frames
        starts = self.starts[run]
        stops = self.stops[run]
        begin, end, _ = cut_parts(*frames.between(starts, stops))
        before = np.append(0, np.cumsum(frames.sizes + 4))
        stored = int((before[end] - before[begin] + 4).sum())
        first = frames.first(int(frames.find_inside(ranges)[0]))
        hint = ClipAudioHint(
            head=self.head, first=first, frames=frames.write_hint(ranges), starts=starts.tolist(), stops=stops.tolist()
        )
        return msgspec.msgpack.encode(hint), len(begin), stored
