"""Defines the format `LeRobot`: a sample is a frame of an episode, with its windows of all cameras and columns.

The registry of formats (`formats/`) has it. The engine surveys, indexes and recodes with it, workers open samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.extras import require_extra
from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats.base import Facts, Field, FieldSpec, Format, Recoder, SampleName
from streamer.formats.failures import check_table, make_refusal
from streamer.formats.reading import Asking, collect_samples, read_range
from streamer.formats.table.records import TableOpener, find_dtype, head_dtype
from streamer.manifest.blocks import Block
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Examine, Examined, Indexing, LeftOut, Source, Span, Survey, Surveying
from streamer.media.containers.tables import Integers
from streamer.media.lerobot.blocks import EpisodeHint, FramePart, reach_of
from streamer.media.lerobot.episodes import (
    EPISODE_COLUMNS,
    TASK_COLUMNS,
    CameraVideo,
    Episode,
    File,
    Run,
    files_of,
    read_camera,
    tasks_of,
)
from streamer.media.lerobot.info import (
    EPISODE,
    FRAME,
    NAME,
    PAD,
    TASK,
    TIME,
    TOLERANCE,
    Info,
    Notes,
    frames_of,
    lengths_of,
    read_info,
)
from streamer.media.video.clip_audio import find_clip_codecs
from streamer.tables.parquet.format import Parquet


class LeRobot(Format, frozen=True, forbid_unknown_fields=True):
    """Data sets of LeRobot, v3 and v2: the url is the folder that has meta/, data/ and videos/.

        LeRobot(delta_timestamps={"observation.images.top": [-0.1, 0.0], "action": [0.0, 0.1, 0.2]})

    A sample is a frame (a row of data/). Its fields have the names that `LeRobotDataset` gives them; frames are uint8
    [3, height, width], those of a window of several frames [frames, 3, height, width]. Depth cameras are float32
    [1, height, width], millimetres.

    Attributes:
        delta_timestamps: seconds from a row to those of its window, by feature. Outside of the episode its first or
            last row is repeated, and "<feature>_is_pad" says where. Features without an entry are those of the row.
        episodes: numbers of the wanted episodes. None means all.
        cameras: names of the wanted cameras. None means all.
        tolerance_s: seconds that a frame may be away from the time of its row at most, and a row from that of its
            number, as in `LeRobotDataset`. A row may be a quarter of a frame away at most.
    """

    name = "lerobot"
    numbered_keys = True
    endings = (".parquet", ".mp4")
    delta_timestamps: Mapping[str, Sequence[float]] = msgspec.field(default_factory=dict)
    episodes: tuple[int, ...] | None = None
    cameras: tuple[str, ...] | None = None
    tolerance_s: Annotated[float, msgspec.Meta(ge=0)] = TOLERANCE

    def accepts(self, key: str) -> bool:
        """Returns whether an object is a file of rows or a video. Tables in meta/ are not; see `Format.accepts`."""
        return super().accepts(key) and "/meta/" not in f"/{key}"

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the files of meta/ and the schema of the first file of rows; see `Format.survey`.

        Episodes whose files are missing are left out. Sources are files of rows, whose notes name episodes and videos,
        then videos.

        Raises:
            ManifestError: a file of meta/ is missing or damaged, or contradicts the others.
            ConfigError: an option names an episode, camera, feature or window that there is not.
        """
        found = [record for url, record in others.items() if url.endswith(f"/{NAME}")]
        if len(found) != 1:
            raise ManifestError(f"{len(found)} of the files are {NAME}; the url names one data set of LeRobot")
        info = read_info(found[0], (yield from read_range(0, found[0].size, found[0])))
        root = found[0].url.removesuffix(NAME)
        cameras = info.cameras if self.cameras is None else self.cameras
        if unknown := set(cameras) - set(info.cameras):
            raise ConfigError(f"cameras={sorted(unknown)}: there are {', '.join(info.cameras)}", field="format")
        windows = frames_of(self.delta_timestamps, info.fps, [*cameras, *info.columns], self.tolerance_s)
        rows = yield from self._table("episodes", root, others, EPISODE_COLUMNS)
        files = files_of(rows=rows, info=info, root=root, cameras=cameras, wanted=self.episodes)
        tasks = tasks_of((yield from self._table("tasks", root, others, TASK_COLUMNS)), root)
        if not files:
            raise ManifestError(f"{root} has no rows in its episodes", url=root)
        known = {record.url: record for record in accepted}
        files, left_out = _drop_episodes_without_files(files, known, root)
        if not files:
            raise ManifestError(left_out[0].what, url=root)
        videos = sorted({video for file in files.values() for video in file.videos})
        sources = [
            Source(known[url], msgspec.msgpack.encode((file, {video: known[video] for video in file.videos})))
            for url, file in files.items()
        ]
        try:
            depths = info.kinds(cameras)
        except ValueError as error:
            raise make_refusal(found[0], f"says of {error}; leave it out: LeRobot(cameras=...)") from error
        notes = Notes(
            rows=Facts(),
            windows=windows,
            cameras=list(cameras),
            tasks=tasks,
            fps=info.fps,
            depths=depths,
            tolerance=self.tolerance_s,
        )
        facts = yield from _facts(known[next(iter(files))], info, notes)
        return Survey([*sources, *(Source(known[video]) for video in videos)], facts, left_out=left_out)

    def _table(
        self, name: str, root: str, others: Mapping[str, ObjectRecord], columns: Sequence[str]
    ) -> Asking[list[dict[str, Any]]]:
        """Reads the rows of a table of meta/: JSON lines (v2.1) itself, Parquet (v3) by a recoder.

        Args:
            name: "episodes" or "tasks".
            root: url of the data set, ending in a slash.
            others: objects that are no samples, by url.
            columns: names of the wanted columns in Parquet, or the beginnings of these.

        Raises:
            ManifestError: the table is missing, empty or damaged.
        """
        place = f"{root}meta/{name}"
        if record := others.get(f"{place}.jsonl"):
            content = yield from read_range(0, record.size, record)
            try:
                return msgspec.json.Decoder(dict[str, Any]).decode_lines(content)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                raise ManifestError(f"{record.url} is not JSON lines: {error}", url=record.url) from error
        rows: list[dict[str, Any]] = []
        tables = [
            others[url]
            for url in sorted(others)
            if url.startswith((f"{place}/", f"{place}.")) and url.endswith(".parquet")
        ]
        if not tables:
            raise ManifestError(f"{place} is missing, so this is not a whole data set of LeRobot", url=place)
        for record in tables:
            check_table(record)
            hint = msgspec.msgpack.encode(columns)
            made = yield Examine(object=record, format=self.name, options={}, facts=Facts(), hint=hint, reads=True)
            assert isinstance(made, Examined)
            rows += msgspec.msgpack.decode(made.records)
        return rows

    def narrow(self, facts: Facts, fields: Collection[str]) -> LeRobot | None:
        """Returns the format without the videos of other cameras, or None if all are wanted; see `Format.narrow`."""
        cameras = facts.notes["cameras"]
        wanted = tuple(camera for camera in cameras if camera in fields or camera + PAD in fields)
        if len(wanted) == len(cameras):
            return None
        left_out = set(cameras) - set(wanted)
        windows = {name: times for name, times in self.delta_timestamps.items() if name not in left_out}
        return msgspec.structs.replace(self, cameras=wanted, delta_timestamps=windows)

    def find_codecs(self, hint: bytes) -> list[str]:
        """Returns the codecs of the cameras; see `Format.find_codecs`."""
        videos = msgspec.msgpack.decode(hint, type=EpisodeHint).videos
        return [name for video in videos for name in find_clip_codecs(video.hint)]

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Yields the blocks of a file of rows, and the episodes left out; nothing for a video. See `Format.index`.

        Raises:
            ManifestError: the file of rows or a video is damaged or not read, or has other rows than meta/ says.
        """
        if not source.notes:
            return
        notes = msgspec.convert(facts.notes, Notes, strict=False)
        file, records = msgspec.msgpack.decode(source.notes, type=tuple[File, dict[str, ObjectRecord]])
        # `Parquet` reads the rows.
        found: list[Span | Block] = []
        parquet = Parquet(tuple(spec.name for spec in notes.rows.fields))
        yield from collect_samples(parquet.index(msgspec.structs.replace(source, notes=b""), notes.rows), found.append)
        rows = [block for block in found if isinstance(block, Block)]
        if (count := sum(block.samples for block in rows)) != file.rows:
            raise ManifestError(
                f"{source.record.url} has {count} rows, and its episodes have {file.rows} by meta/episodes; "
                "write it again",
                url=source.record.url,
            )
        fields = notes.fields()
        reach = reach_of(notes.windows.get(spec.name, [0]) for spec in notes.rows.fields)
        windows = [notes.windows.get(camera, [0]) for camera in notes.cameras]
        sample_bytes = head_dtype(fields).itemsize + sum(block.record_bytes for block in rows) // file.rows
        videos: dict[str, CameraVideo] = {}
        for urls, members in groupby(file.episodes, lambda episode: [url for url, _ in episode.videos]):
            episodes = list(members)
            known = videos
            videos = {}
            for url in urls:
                videos[url] = known.get(url) or (yield from read_camera(records[url]))
            episodes, left_out = _drop_episodes_without_frames(episodes, [videos[url] for url in urls], notes)
            yield from left_out
            if not episodes:
                continue
            frames = [
                (videos[url], _frames(video=videos[url], camera=camera, rows=file.rows, episodes=episodes, notes=notes))
                for camera, url in enumerate(urls)
            ]
            part = FramePart(
                record=source.record, rows=rows, videos=frames, windows=windows, reach=reach, sample_bytes=sample_bytes
            )
            yield from part.blocks(list(map(Run.from_episode, episodes)), source.chunk_bytes)

    def opener(self, facts: Facts) -> LeRobotOpener:
        """Returns what opens records of frames; see `Format.opener`."""
        return LeRobotOpener(msgspec.convert(facts.notes, Notes, strict=False))

    def recoder(self, facts: Facts) -> Recoder:
        """Returns what makes records, or, if there are no facts yet, reads tables of meta/; see `Format.recoder`.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        with require_extra("reading files of LeRobot", field="format"):
            from streamer.media.lerobot.recode import LeRobotRecoder, TableRecoder
        return LeRobotRecoder(msgspec.convert(facts.notes, Notes, strict=False)) if facts.notes else TableRecoder()


def _drop_episodes_without_files(
    files: dict[str, File], known: Mapping[str, ObjectRecord], root: str
) -> tuple[dict[str, File], list[LeftOut]]:
    """Leaves out episodes whose rows or videos do not exist.

    Args:
        files: files of rows with their episodes, by url.
        known: objects of the data set by url.
        root: url of the data set, for messages.

    Returns:
        The files that keep an episode, and the episodes that are left out.
    """
    found: dict[str, File] = {}
    left_out: list[LeftOut] = []
    for url, file in files.items():
        kept = []
        for episode in file.episodes:
            lost = next((name for name in (url, *(video for video, _ in episode.videos)) if name not in known), None)
            if lost is None:
                kept.append(episode)
            else:
                what = f"{lost} has episode {episode.number} by {root}meta/episodes, and does not exist"
                left_out.append(LeftOut(what))
        if kept:
            found[url] = File(file.rows, kept)
    return found, left_out


def _drop_episodes_without_frames(
    episodes: Sequence[Episode], videos: Sequence[CameraVideo], notes: Notes
) -> tuple[list[Episode], list[LeftOut]]:
    """Returns the episodes that have a frame of each video for each row, and why each of the others is left out."""
    found: list[Episode] = []
    left_out: list[LeftOut] = []
    for episode in episodes:
        try:
            for camera, video in enumerate(videos):
                video.frames_at(_times(episode, camera, notes), episode.number, notes.tolerance)
        except ManifestError as error:
            left_out.append(LeftOut(error.message))
        else:
            found.append(episode)
    return found, left_out


def _times(episode: Episode, camera: int, notes: Notes) -> NDArray[np.float64]:
    """Returns when the frames of the rows of an episode are shown in the video of a camera, seconds: (rows,)."""
    found: NDArray[np.float64] = episode.videos[camera][1] + np.arange(episode.length) / notes.fps
    return found


def _frames(video: CameraVideo, camera: int, rows: int, episodes: Sequence[Episode], notes: Notes) -> Integers:
    """Returns for each row of a file the number of its frame in a video, or -1 for rows of other episodes.

    Args:
        video: the video.
        camera: number of its camera.
        rows: number of rows of the file.
        episodes: the episodes that are in the video.
        notes: facts about the data set.
    """
    found = np.full(rows, -1)
    for episode in episodes:
        times = _times(episode, camera, notes)
        found[episode.row : episode.row + episode.length] = video.frames_at(times, episode.number, notes.tolerance)
    return found


def _facts(record: ObjectRecord, info: Info, notes: Notes) -> Asking[Facts]:
    """Returns the facts about the samples of a data set.

    Args:
        record: a file of rows, whose schema is read.
        info: content of meta/info.json.
        notes: notes without facts of the rows, which are added.

    Raises:
        ManifestError: the schema contradicts meta/info.json, or lacks columns.
        ConfigError: a feature with a window has values that cannot be in windows.
    """
    try:
        found = (yield from Parquet(info.columns).survey([record], {})).facts
    except ConfigError as error:
        raise ManifestError(f"{record.url} contradicts {NAME}: {error.message}", url=record.url) from error
    rows = msgspec.structs.replace(found, fields=tuple(map(info.kind, found.fields)))
    for spec in rows.fields:
        if spec.name in notes.windows and find_dtype(spec.kind) is None:
            raise ConfigError(f"delta_timestamps: feature {spec.name!r} ({spec.kind}) has no windows", field="format")
    numbers = {spec.name for spec in rows.fields if (dtype := find_dtype(spec.kind)) is not None and not dtype.shape}
    if missing := {EPISODE, FRAME, TIME, TASK} - numbers:
        raise ManifestError(f"{record.url} has no column of numbers {', '.join(sorted(missing))}", url=record.url)
    notes = msgspec.structs.replace(notes, rows=rows)
    fields = [*(FieldSpec(camera, notes.kind(camera)) for camera in notes.cameras), *notes.fields()]
    return Facts(tuple(fields), msgspec.to_builtins(notes, str_keys=True), found.classes)


class LeRobotOpener:
    """Opens records of frames.

    A record has u32 lengths of the row, of the head of each camera and of the packets of each camera. Then come the
    row, the heads and the packets.

    Args:
        notes: facts about the data set.
    """

    def __init__(self, notes: Notes) -> None:
        self._rows = TableOpener(notes.fields())
        self._cameras = [(camera, notes.kind(camera)) for camera in notes.cameras]
        self._lengths = lengths_of(len(notes.cameras))

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        """Returns key and fields of a sample; see `Opener.open`. Packets of cameras are copied, to follow their head.

        Raises:
            DecodeError: the content is no such record.
        """
        if len(content) < self._lengths.size:
            raise DecodeError(f"a record of {len(content)} bytes; its head alone has {self._lengths.size}")
        row, *lengths = self._lengths.unpack_from(content)
        at = self._lengths.size + row
        pieces = []
        if at + sum(lengths) != len(content):
            raise DecodeError(f"a record of {len(content)} bytes; its head says {at + sum(lengths)}")
        key, fields = self._rows.open(content[self._lengths.size : at], name)
        for length in lengths:
            pieces.append(content[at : at + length])
            at += length
        count = len(self._cameras)
        clips = [memoryview(b"".join(pair)) for pair in zip(pieces[:count], pieces[count:], strict=True)]
        return key, [*(Field(c, clip, kind) for (c, kind), clip in zip(self._cameras, clips, strict=True)), *fields]
