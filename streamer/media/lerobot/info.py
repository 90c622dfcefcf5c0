"""Reads meta/info.json of LeRobot: features, cameras and depth cameras, and the fields that samples have of them.

The modules beside it use it for survey, index and records, and `media/decode/` for depth cameras. There is no I/O here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

import msgspec

from streamer.errors import ConfigError, ManifestError
from streamer.formats.base import Facts, FieldSpec
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.records import CLIP

NAME = "meta/info.json"
# Usual tolerance in seconds between the time of a row and its nearest frame, and between a time difference of a window
# and whole frames.
TOLERANCE = 1e-4
# Columns that all data sets have, and which the recoder compares with the tables of meta/.
EPISODE = "episode_index"
FRAME = "frame_index"
TIME = "timestamp"
TASK = "task_index"
# Time differences of a window are below this.
_LONGEST_SECONDS = 1e6
_PLACE = re.compile(r"\{(\w+)(?::0(\d)d)?\}")
_VIDEO = "video"
_IMAGE = "image"
# A field with this end of its name says which rows of a window are outside of the episode.
PAD = "_is_pad"


class Feature(msgspec.Struct, frozen=True):
    """A feature, as LeRobot calls a field of its frames.

    Attributes:
        dtype: its type ("video", "image", "float32", ...).
        shape: its shape.
        info: facts about its video in v3, or None.
        video_info: facts about its video in v2, or None.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    info: dict[str, Any] | None = None
    video_info: dict[str, Any] | None = None

    @property
    def video(self) -> dict[str, Any]:
        """Facts about its video, in v3 or v2."""
        return {**(self.video_info or {}), **(self.info or {})}


class Info(msgspec.Struct, frozen=True):
    """The content of meta/info.json.

    Attributes:
        codebase_version: version of the data set, such as "v3.0" or "v2.1".
        fps: frames a second of rows and videos.
        features: the features by name. Those of type "video" are in videos.
        data_path: template of the names of files of rows.
        video_path: template of the names of videos, or None if there are none.
        chunks_size: number of episodes in a folder (v2).
    """

    codebase_version: str
    fps: float
    features: dict[str, Feature]
    data_path: str
    video_path: str | None = None
    chunks_size: int = 1000

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the features that are in videos."""
        return tuple(name for name, feature in self.features.items() if feature.dtype == _VIDEO)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the features that are in rows."""
        return tuple(name for name, feature in self.features.items() if feature.dtype != _VIDEO)

    def kinds(self, cameras: Sequence[str]) -> dict[str, str]:
        """Returns the kinds of fields of those of these cameras that are depth cameras, by name.

        Raises:
            ValueError: a camera has grey frames of more than 8 bits and is not marked as a depth camera, or a depth
                camera says distances that cannot be.
        """
        found = {}
        for name in cameras:
            video = self.features[name].video
            pixels = str(video.get("video.pix_fmt", video.get("pix_fmt", "")))
            try:
                depth = depth_of(video)
            except ValueError as error:
                raise ValueError(f"the camera {name!r} of depth: {error}") from error
            if depth is not None:
                found[name] = depth.kind
            elif pixels.startswith("gray") and pixels not in {"gray", "gray8"}:
                raise ValueError(f"the camera {name!r} has frames {pixels} and is not marked as one of depth")
        return found

    def path(self, template: str, episode: int, file: Mapping[str, object]) -> str:
        """Returns the name of a file of an episode, below the data set.

        Args:
            template: template of the name, with places such as "{episode_index:06d}".
            episode: number of the episode.
            file: further values for the template, by name.

        Raises:
            ValueError: the template has a name without a value.
        """
        values = {"episode_index": episode, "episode_chunk": episode // max(1, self.chunks_size), **file}
        if unknown := {place[1] for place in _PLACE.finditer(template)} - values.keys():
            raise ValueError(f"the template {template!r} has {sorted(unknown)}, which are not known")
        return _PLACE.sub(lambda place: str(values[place[1]]).zfill(int(place[2] or 0)), template)

    def kind(self, spec: FieldSpec) -> FieldSpec:
        """Returns a field of Parquet with the shape of its feature, because lists of Parquet have no fixed length."""
        base, bracket, _ = spec.kind.partition("[")
        shape = self.features[spec.name].shape if bracket else ()
        return FieldSpec(spec.name, f"{base}[{','.join(map(str, shape))}]") if shape else spec


def read_info(record: ObjectRecord, content: memoryview) -> Info:
    """Reads meta/info.json.

    Args:
        record: the file, for errors.
        content: its bytes.

    Raises:
        ManifestError: it is not such a file, is of another version than v2 or v3, lacks features, or its fps is not
            above 0.
    """
    try:
        info = msgspec.json.decode(content, type=Info)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestError(f"{record.url} is not the info.json of LeRobot: {error}", url=record.url) from error
    if not info.codebase_version.startswith(("v3.", "v2.")):
        raise ManifestError(
            f"{record.url} is of version {info.codebase_version!r}; v3 and v2 are read: convert it with lerobot's "
            "convert_dataset scripts",
            url=record.url,
        )
    if not info.fps > 0:
        raise ManifestError(f"{record.url} has fps={info.fps}: frames a second are above 0", url=record.url)
    if missing := {EPISODE, FRAME, TIME, TASK} - set(info.columns):
        raise ManifestError(f"{record.url} lacks the features {', '.join(sorted(missing))}", url=record.url)
    return info


def frames_of(
    deltas: Mapping[str, Sequence[float]], frame_rate: float, known: Sequence[str], tolerance_seconds: float
) -> dict[str, list[int]]:
    """Returns the windows of features in frames: distances from a row to those of its window.

    Args:
        deltas: distances in seconds, by feature.
        frame_rate: frames a second.
        known: names of the features that may have windows.
        tolerance_seconds: seconds by which a distance may differ from whole frames at most.

    Raises:
        ConfigError: a feature is not known, a window is empty, or a distance is not a multiple of a frame or not below
            1e6 seconds.
    """
    found = {}
    for key, seconds in deltas.items():
        if key not in known:
            raise ConfigError(f"delta_timestamps: no feature {key!r}; there are {', '.join(known)}", field="format")
        wrong = [
            delta
            for delta in seconds
            if not abs(delta) < _LONGEST_SECONDS
            or abs(delta - round(delta * frame_rate) / frame_rate) > tolerance_seconds
        ]
        if wrong or not seconds:
            raise ConfigError(
                f"delta_timestamps[{key!r}]={list(seconds)} has {wrong or 'nothing'}; give multiples of "
                f"1/{frame_rate:g} s",
                field="format",
            )
        found[key] = [round(delta * frame_rate) for delta in seconds]
    return found


class Notes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts about a data set that index, recoder and opener need; they are the notes of `Facts`.

    Attributes:
        rows: facts of the files of rows, as `Parquet` has them.
        windows: distances in frames from a row to those of its window, by feature.
        cameras: names of the cameras that samples have.
        tasks: texts of tasks by number.
        fps: frames a second.
        depths: kinds of fields of the depth cameras, by name.
        tolerance: seconds that rows and frames may be away from their times at most.
    """

    rows: Facts
    windows: dict[str, list[int]]
    cameras: list[str]
    tasks: dict[int, str]
    fps: float
    depths: dict[str, str] = msgspec.field(default_factory=dict)
    tolerance: float = TOLERANCE

    def kind(self, camera: str) -> str:
        """Returns the kind of the field of a camera."""
        return self.depths.get(camera, CLIP)

    def fields(self) -> list[FieldSpec]:
        """Returns the fields of samples that come from rows, those that say where windows are padded, and the task."""
        found = []
        for spec in self.rows.fields:
            window = self.windows.get(spec.name)
            base, _, shape = spec.kind.removesuffix("]").partition("[")
            kind = spec.kind if window is None else f"{base}[{','.join(filter(None, [str(len(window)), shape]))}]"
            found.append(FieldSpec(spec.name, kind))
        pads = [FieldSpec(name + PAD, f"?[{len(window)}]") for name, window in self.windows.items()]
        return [*found, *pads, FieldSpec("task", "txt")]


def lengths_of(cameras: int) -> Struct:
    """Returns the layout with which a record begins: lengths of the row, and of heads and packets of all cameras."""
    return Struct(f"<{1 + 2 * cameras}I")


# The kinds of fields of depth cameras begin so; JSON of a `Depth` follows. Source: lerobot 0.6, configs/video.py
# (DepthEncoderConfig) and datasets/depth_utils.py.
DEPTH = "depth:"
_MARKS = ("is_depth_map", "video.is_depth_map")


class Depth(msgspec.Struct, frozen=True):
    """The way in which a depth camera stores distances: linearly from `depth_min` to `depth_max`, or as logarithms.

    Attributes:
        depth_min: distance of the least number, metres.
        depth_max: distance of the largest number, metres.
        shift: metres that were added before the logarithm.
        use_log: whether logarithms are stored.

    Raises:
        ValueError: the distances cannot be.
    """

    # The defaults of lerobot.
    depth_min: float = 0.01
    depth_max: float = 10.0
    shift: float = 3.5
    use_log: bool = True

    def __post_init__(self) -> None:
        numbers = (self.depth_min, self.depth_max, self.shift)
        if not all(map(math.isfinite, numbers)) or self.depth_max <= self.depth_min:
            raise ValueError(f"depth_min={self.depth_min}, depth_max={self.depth_max}, shift={self.shift}")
        if self.use_log and self.depth_min + self.shift <= 0:
            raise ValueError(f"the logarithm of depth_min + shift = {self.depth_min + self.shift}")

    @property
    def kind(self) -> str:
        """Kind of a field with frames of such a camera."""
        return DEPTH + msgspec.json.encode(self).decode()


def depth_of(info: Mapping[str, Any]) -> Depth | None:
    """Returns how a camera stores distances, or None if it is not marked as a depth camera.

    Args:
        info: facts about the video of the camera (`Feature.video`).

    Raises:
        ValueError: it is marked, and says distances that cannot be.
    """
    if not any(info.get(mark) is True for mark in _MARKS):
        return None
    found = {}
    for name in Depth.__struct_fields__:
        value = info.get(f"video.{name}", info.get(name))
        if value is not None:
            found[name] = value
    try:
        return msgspec.convert(found, Depth)
    except ValueError as error:
        raise ValueError(str(error)) from error


def read_kind(kind: str) -> Depth | None:
    """Returns how distances are stored, from the kind of a field (`Depth.kind`); None if it does not say that."""
    try:
        return msgspec.json.decode(kind.removeprefix(DEPTH), type=Depth)
    except (ValueError, RecursionError):
        return None
