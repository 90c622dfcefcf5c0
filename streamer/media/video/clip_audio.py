"""The audio of clips: which packets of an audio track belong to the samples of a track of frames. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from streamer.base.ranges import Range
from streamer.errors import RecodeError
from streamer.formats.failures import DamagedError
from streamer.media.audio.recordings import AudioFrames, PackedFrames, Packeted
from streamer.media.audio.windows import cut_parts
from streamer.media.containers.blocks import ClipHint
from streamer.media.containers.clips import FrameTable, Samples
from streamer.media.containers.records import ClipAudioHeader
from streamer.media.containers.tables import Integers


class ClipAudioHint(msgspec.Struct, frozen=True, array_like=True):
    """The audio of a block, for the recoder.

    Attributes:
        head: of all samples.
        first: the first sample of the first packet.
        frames: packets of audio in the bytes of the block.
        starts, stops: samples that each sample of the block needs.
    """

    head: ClipAudioHeader
    first: int
    frames: PackedFrames
    starts: list[int]
    stops: list[int]

    def pieces(self, content: memoryview) -> tuple[list[bytes], Integers, list[ClipAudioHeader]]:
        """See `find_audio_pieces`."""
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
        The pieces that samples share, the range of pieces of each, and what their heads have.

    Raises:
        RecodeError: the index did not write the hint.
    """
    try:
        return msgspec.msgpack.decode(hint, type=ClipAudioHint).pieces(content)
    except (msgspec.MsgspecError, DamagedError, OverflowError) as error:
        raise RecodeError(f"the hint of the audio of a block is damaged: {error}") from error


def find_clip_codecs(hint: bytes) -> list[str]:
    """Returns FFmpeg's names of the codecs of a block of clips, from its hint."""
    found = msgspec.msgpack.decode(hint, type=ClipHint)
    if not found.audio:
        return [found.codec.name]
    return [found.codec.name, msgspec.msgpack.decode(found.audio, type=ClipAudioHint).head.codec.name]


class ClipAudio(msgspec.Struct, frozen=True):
    """The audio of a track of clips.

    Attributes:
        track: of audio.
        head: of all samples.
        starts, stops: samples that each sample needs, within the track.
    """

    track: Packeted
    head: ClipAudioHeader
    starts: Integers
    stops: Integers

    @classmethod
    def find(cls, track: Packeted, frames: FrameTable, samples: Samples, timescale: int) -> ClipAudio:
        """Finds the audio of samples: as long as their frames at the usual rate, so that all clips have one length."""
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
        # A clip outside of the audio reads one sample, which it does not deliver.
        starts = np.clip(begins, 0, track.total - 1)
        return cls(track, head, starts, np.clip(ends + head.length, starts + 1, track.total))

    def bytes_of(self, run: slice) -> tuple[Integers, Integers]:
        """The bytes of the packets of a run of samples: their beginnings and lengths."""
        lower, upper = self.track.bounds(self.starts[run], self.stops[run])
        return lower, upper - lower

    def hint(self, run: slice, ranges: Sequence[Range]) -> tuple[bytes, int, int]:
        """The hint of a run of samples in these ranges; the parts that they share, and the bytes of these."""
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
