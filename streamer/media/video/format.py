"""Defines the format `Video`: clips out of long videos in mp4, mov, Matroska and WebM.

The registry of formats (`formats/`) has it. The engine surveys, indexes and recodes with it, workers open samples.
Chunks have only the packets of clips.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np

from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Facts, Field, FieldPacker, FieldSpec, Format, SampleName
from streamer.formats.failures import DamagedError, UnreadError, errors_of
from streamer.formats.reading import Reading
from streamer.formats.table.records import TableOpener
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Short, Source, Survey, Surveying
from streamer.manifest.table import Manifest
from streamer.media.audio.recordings import Packeted
from streamer.media.audio.tracks import find_audio_track
from streamer.media.audio.windows import TIME_MARK
from streamer.media.containers.blocks import Described, cut_blocks
from streamer.media.containers.clips import FrameTable, Pattern, Sampling, samples_of
from streamer.media.containers.matroska import read_matroska
from streamer.media.containers.movie import VIDEO, read_movie
from streamer.media.containers.recode import ClipRecoder
from streamer.media.containers.records import CLIP, CLIP_AUDIO, DURATION, PTS, read_head
from streamer.media.containers.segments import Segments, assign_rows, read_table
from streamer.media.containers.tables import Integers, Packets
from streamer.media.video.clip_audio import ClipAudio, find_audio_pieces, find_clip_codecs
from streamer.media.video.cost import ClipCost, mean_cost, sample_cost
from streamer.media.video.mp4 import can_pack_clips, find_clip_bytes, pack_clip

_FIELDS = (FieldSpec("frames", CLIP), FieldSpec("pts_seconds", PTS), FieldSpec("duration_seconds", DURATION))
_AUDIO_FIELDS = (FieldSpec("audio", CLIP_AUDIO), FieldSpec("sample_rate", "<i4"))
_RATE = struct.Struct("<i")
_MATROSKA = (".mkv", ".webm")
# Options that segments exclude, with their defaults. Then those that start="spread" excludes.
_GRID = {"num_indices_between_clip_starts": None, "seconds_between_clip_starts": None, "clips_per_sample": 1}
_SPACING = {"num_indices_between_frames": 1, "seconds_between_frames": None}
_Count = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Video(Format, frozen=True, forbid_unknown_fields=True):
    """Videos: a sample is a clip of them, exact to the frame.

        StreamingDataset(url, format=Video(16, num_indices_between_frames=2))

    Its fields are "frames", uint8 [frames, 3, height, width], "pts_seconds" and "duration_seconds", float64 [frames].
    The key is the path with the time: "a.mp4#t=12.48,13.55".

    Attributes:
        num_frames_per_clip: frames of a clip.
        num_indices_between_frames: frames of the video from one frame of a clip to the next.
        seconds_between_frames: seconds instead. A clip has the frames shown at these times, at any rate of frames.
        num_indices_between_clip_starts: frames from the beginning of a clip to that of the next. None means that a clip
            begins where the one before it ends.
        seconds_between_clip_starts: seconds instead.
        start: "grid" begins clips at these places. "random" begins each anywhere from its place to the next, drawn anew
            in each epoch. "key" begins it at the first key frame between them, so that nothing before the clip is
            decoded, and leaves it out if there is none. "spread", with `segments`, spreads frames over the segment.
        clips_per_sample: if it is not 1, a sample is so many clips that follow each other, decoded at once. Its fields
            have one more axis, [clips, frames, ...].
        at_end: "drop" leaves out clips that reach over the end of a video, "repeat_last" repeats its last frame.
        stream_index: number of the track. None means the one with most pixels, covers and previews aside.
        segments: path of a table, see docs/video.md, whose rows are the samples: a clip begins and ends inside of its
            segment. The other columns are fields.
        audio: whether samples have the audio of the clip, "audio", float32 [channels, n] from -1 to 1, and
            "sample_rate". Only mp4 and mov can have it.

    Raises:
        ConfigError: options exclude each other, or `start="spread"` lacks `segments`.
    """

    name = "video"
    part_mark = TIME_MARK
    stored_names: ClassVar[Mapping[str, str]] = {"at_end": "policy"}
    endings = (".mp4", ".m4v", ".mov", *_MATROSKA)
    num_frames_per_clip: _Count = 16
    num_indices_between_frames: _Count = 1
    seconds_between_frames: _Seconds | None = None
    num_indices_between_clip_starts: Annotated[int, msgspec.Meta(ge=1)] | None = None
    seconds_between_clip_starts: _Seconds | None = None
    start: Literal["grid", "random", "key", "spread"] = "grid"
    clips_per_sample: _Count = 1
    at_end: Literal["drop", "repeat_last"] = "drop"
    stream_index: int | None = None
    segments: str | None = None
    audio: bool = False

    def __post_init__(self) -> None:
        for one, other in (
            ("seconds_between_frames", "num_indices_between_frames"),
            ("seconds_between_clip_starts", "num_indices_between_clip_starts"),
        ):
            if getattr(self, one) is not None and getattr(self, other) not in {None, 1}:
                raise ConfigError(f"Video: {one} and {other} exclude each other", field="format")
        excluded = {**_GRID, **_SPACING} if self.start == "spread" else _GRID
        both = [name for name, default in excluded.items() if getattr(self, name) != default]
        if self.segments is not None and both:
            raise ConfigError(
                f"Video: segments with start={self.start!r} and {both[0]} exclude each other", field="format"
            )
        if self.audio and self.start == "spread":
            raise ConfigError(
                "Video: audio and start='spread' exclude each other: frames are not a clip", field="format"
            )
        if self.segments is None and self.start == "spread":
            raise ConfigError(
                "Video: start='spread' spreads frames over segments; segments= is missing", field="format"
            )

    @property
    def sampling(self) -> Sampling:
        """How videos are cut into samples."""
        seconds = self.seconds_between_frames
        every = 0 if seconds is not None else self.num_indices_between_frames
        return Sampling(
            pattern=Pattern(self.num_frames_per_clip, every, seconds or 0.0),
            step=self.num_indices_between_clip_starts,
            step_seconds=self.seconds_between_clip_starts,
            start=self.start,
            clips=self.clips_per_sample,
            repeats_last=self.at_end == "repeat_last",
        )

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Takes all videos without reading them, or with `segments=` those that have rows in the table.

        Raises:
            ConfigError, ManifestError: the table is not found, or cannot be read. See `Format.survey`.
        """
        if self.segments is None:
            notes = {"clips": self.clips_per_sample} if self.clips_per_sample != 1 else {}
            return Survey([Source(record) for record in accepted], Facts(self._fields, notes))
        # A table whose url is one of the dataset's is accepted.
        videos = [record for record in accepted if record.url.lower().endswith(self.endings)]
        tables = [*others.values(), *(record for record in accepted if not record.url.lower().endswith(self.endings))]
        record, table = yield from read_table(self.name, self.segments, tables)
        rows, left_out = assign_rows(record.url, table, videos)
        sources = [Source(video, msgspec.msgpack.encode(rows[video.url])) for video in videos if video.url in rows]
        # The version of the table is a fact, so that another table makes another manifest.
        facts = Facts((*self._fields, *table.fields), {"segments": record.version})
        return Survey(sources, facts, rows=len(table.paths) - len(left_out), left_out=left_out)

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Yields the blocks of the clips of a video, or `Short` if it has none, and the segments outside of the video.

        Raises:
            ManifestError: the video is damaged, or of a kind that is not read.
        """
        record = source.record
        with errors_of(record, "copy it anew", of_one=True):
            packets, described, audio = yield from self._packets(source)
            packets, timescale = packets.separate_times(described.timescale)
            described = msgspec.structs.replace(described, timescale=timescale)
            if not len(packets):
                if source.notes:
                    raise DamagedError("its track has segments and no packets")
                return
            frames = FrameTable.from_packets(packets)
            if source.notes:
                rows = msgspec.msgpack.decode(source.notes, type=Segments)
                rows, left_out = rows.inside(self.sampling, frames, timescale, record.url)
                yield from left_out
                samples = rows.samples(self.sampling, packets, frames, timescale)
            else:
                samples = samples_of(self.sampling, packets, frames, timescale)
                if not samples.rows:
                    yield Short(
                        len(frames),
                        f"frames, clips have {self.num_frames_per_clip}",
                        "at_end='repeat_last' repeats the last one",
                    )
            if audio is not None and samples.rows:
                of_clips = ClipAudio.find(audio, frames, samples, timescale)
                described = msgspec.structs.replace(described, audio=of_clips)
            yield from cut_blocks(
                packets=packets, frames=frames, samples=samples, described=described, chunk_bytes=source.chunk_bytes
            )

    def _packets(self, source: Source) -> Reading[tuple[Packets, Described, Packeted | None]]:
        """Reads the index of a video.

        Returns:
            The packets of its track of frames, facts about the track, and the audio track if clips have audio.

        Raises:
            DamagedError, UnreadError: the file is damaged, or of a kind that is not read.
        """
        record = source.record
        key = source.key or source.record.url
        if record.url.lower().endswith(_MATROSKA):
            if self.audio:
                raise UnreadError("is Matroska, whose audio is not read: audio=True takes mp4 and mov")
            packets, codec, timescale = yield from read_matroska(record, self.stream_index)
            return packets, Described(key, [codec], timescale), None
        movie = yield from read_movie(record)
        track = movie.track(VIDEO, self.stream_index)
        packets = movie.packets(track)
        codecs = [track.codec(entry) for entry in range(len(track.entries))]
        for entry in (packets.entry.min(initial=0), packets.entry.max(initial=0)):
            track.codec(int(entry))
        audio = find_audio_track(movie) if self.audio else None
        return packets, Described(key, codecs, track.timescale), audio

    def find_codecs(self, hint: bytes) -> list[str]:
        """Returns the codecs of frames and audio; see `Format.find_codecs`."""
        return find_clip_codecs(hint)

    def find_sample_bytes(self, manifest: Manifest) -> Integers:
        """Returns the bytes of the packets of each clip; see `Format.find_sample_bytes`."""
        return find_clip_bytes(manifest)

    def find_decode_cost(self, manifest: Manifest, ordinal: int | None = None) -> ClipCost:
        """Returns how many packets are decoded for how many frames; see `Format.find_decode_cost`."""
        return mean_cost(manifest) if ordinal is None else sample_cost(manifest, ordinal)

    def find_packer(self, manifest: Manifest) -> FieldPacker | None:
        """Returns what makes a small video of each clip, or None if not every clip can be a video of its own."""
        return pack_clip if can_pack_clips(manifest) else None

    @property
    def _fields(self) -> tuple[FieldSpec, ...]:
        return (*_FIELDS, *_AUDIO_FIELDS) if self.audio else _FIELDS

    def opener(self, facts: Facts) -> ClipOpener:
        """Returns what opens records of clips; see `Format.opener`."""
        return ClipOpener(facts.fields[len(self._fields) :])

    def recoder(self, facts: Facts) -> ClipRecoder:
        """Returns what makes records of clips, and reads the table of segments for the survey; see `Format.recoder`."""
        return ClipRecoder([spec.name for spec in self._fields], find_audio_pieces if self.audio else None)


class ClipOpener:
    """Opens records of clips. A field of the clip is the whole record, which its decoder reads.

    Args:
        columns: the other columns of the table of segments, which are fields too.
    """

    def __init__(self, columns: Sequence[FieldSpec] = ()) -> None:
        self._row = TableOpener(columns) if columns else None

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """Returns key and fields of a sample; see `Opener.open`. The key has the times of the first and last frame.

        Raises:
            DecodeError: the content is no record of clips.
        """
        try:
            head, _ = read_head(content)
            pts = np.frombuffer(head.pts, "<i8")
            first, last = (int(value) / head.timescale for value in (pts.min(), pts.max()))
        except (ValueError, ArithmeticError, struct.error, msgspec.MsgspecError) as error:
            raise DecodeError(f"no record of clips: {error}") from error
        fields = [Field(spec.name, content, spec.kind) for spec in _FIELDS]
        if head.audio:
            rate = memoryview(_RATE.pack(head.audio.codec.rate))
            fields += [Field("audio", content, CLIP_AUDIO), Field("sample_rate", rate, "<i4")]
        if self._row:
            fields += self._row.open(memoryview(head.extra), name)[1]
        return f"{head.key}{TIME_MARK}{_text(first)},{_text(last)}", fields


def _text(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")
