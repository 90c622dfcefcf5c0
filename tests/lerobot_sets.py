"""Datasets as LeRobot's writer lays them out: every frame has the number of its row (plus 500 for each camera).

They stand for sets of LeRobot, with small videos and made-up rows; its statistics are mostly left out.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.videos import decoded, video

FPS = 10
CAMERAS = ("observation.images.top", "observation.images.wrist")
LENGTHS = (9, 4, 7, 5)
# The video of each episode, for each camera; the file of rows of each.
CAMERA_FILES, ROWS = ((0, 0, 1, 1), (0, 1, 1, 1)), (0, 0, 0, 1)
ALONE = tuple(range(len(LENGTHS)))
TASKS = ("push the block", "lift it")
PATHS = {
    "v3.0": {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    },
    "v2.1": {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    },
}
_FIRSTS = np.cumsum([0, *LENGTHS]).tolist()
_KINDS = {
    "action": ("float32", [2]),
    "observation.state": ("float32", [3]),
    "next.done": ("bool", [1]),
    "timestamp": ("float32", [1]),
    **dict.fromkeys(["frame_index", "episode_index", "index", "task_index"], ("int64", [1])),
}


def row_of(episode: int, frame: int) -> dict[str, np.ndarray | np.generic]:
    """Returns a row, of the types that its features have."""
    row = _FIRSTS[episode] + frame
    values = {
        "action": [row, row / 2],
        "observation.state": [-row, 1, row * row],
        "next.done": frame == LENGTHS[episode] - 1,
        "timestamp": frame / FPS,
        "frame_index": frame,
        "episode_index": episode,
        "index": row,
        "task_index": episode % 2,
    }
    return {name: np.array(value, _KINDS[name][0])[()] for name, value in values.items()}


@functools.cache
def lerobot_set(version: str = "v3.0", groups: bool = True) -> Mapping[str, bytes]:
    """Returns the files of a dataset; `groups`: a row group for each episode, else one for all of a file."""
    rows, found = ROWS if version == "v3.0" else ALONE, {}
    features = {camera: {"dtype": "video", "shape": [96, 128, 3]} for camera in CAMERAS}
    features |= {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in _KINDS.items()}
    info = {"codebase_version": version, "fps": FPS, "features": features, **PATHS[version], "chunks_size": 1000}
    found["meta/info.json"] = json.dumps(info).encode()
    episodes = [_episode(episode, version) for episode in ALONE]
    tasks = [{"task_index": number, "task": task} for number, task in enumerate(TASKS)]
    if version == "v3.0":
        for number, some in enumerate((episodes[:3], episodes[3:])):
            found[f"meta/episodes/chunk-000/file-{number:03}.parquet"] = _table([some])
        found["meta/tasks.parquet"] = _table([tasks])
    else:
        for name, lines in (("episodes", episodes), ("tasks", tasks)):
            found[f"meta/{name}.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    for file in sorted(set(rows)):
        members = [[_listed(row_of(e, f)) for f in range(LENGTHS[e])] for e in ALONE if rows[e] == file]
        some = members if groups else [[row for member in members for row in member]]
        found[_path(version, "data_path", file)] = _table(some)
    for camera, name in enumerate(CAMERAS):
        for file in sorted(set(_videos(version, camera))):
            shown = [row + 500 * camera for row in _rows_of_video(version, camera, file)]
            found[_path(version, "video_path", file, name)] = _find_video(
                shown, coded_alone=version == "v3.0" and file == 0
            )
    return found


def samples_of_set(version: str, windows: Mapping[str, Sequence[float]]) -> Iterator[dict[str, object]]:
    """Yields every sample as `LeRobotDataset` does, but for frames, which are uint8; by full decodes of all videos."""
    pictures = [
        {
            row: picture
            for file in set(_videos(version, camera))
            for row, picture in zip(
                _rows_of_video(version, camera, file),
                decoded(lerobot_set(version)[_path(version, "video_path", file, name)])[0],
                strict=True,
            )
        }
        for camera, name in enumerate(CAMERAS)
    ]
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            sample: dict[str, object] = {}
            for name in (*CAMERAS, *_KINDS):
                frames = [frame + round(delta * FPS) for delta in windows.get(name, [0.0])]
                inside = [min(max(each, 0), length - 1) for each in frames]
                if name in CAMERAS:
                    values = [pictures[CAMERAS.index(name)][_FIRSTS[episode] + each] for each in inside]
                else:
                    values = [row_of(episode, each)[name] for each in inside]
                is_one = len(values) == 1 and (name not in windows or name in CAMERAS)
                sample[name] = values[0] if is_one else np.stack(values)
                if name in windows:
                    sample[f"{name}_is_pad"] = np.array([a != b for a, b in zip(frames, inside, strict=True)])
            yield {**sample, "task": TASKS[episode % 2]}


def _videos(version: str, camera: int) -> Sequence[int]:
    return CAMERA_FILES[camera] if version == "v3.0" else ALONE


def _rows_of_video(version: str, camera: int, file: int) -> list[int]:
    chosen = [episode for episode in ALONE if _videos(version, camera)[episode] == file]
    return [row for episode in chosen for row in range(_FIRSTS[episode], _FIRSTS[episode + 1])]


def _episode(episode: int, version: str) -> dict[str, object]:
    first, length = _FIRSTS[episode], LENGTHS[episode]
    found: dict[str, object] = {"episode_index": episode, "length": length, "tasks": [TASKS[episode % 2]]}
    if version != "v3.0":
        return found
    found |= {"dataset_from_index": first, "dataset_to_index": first + length, "stats/action/mean": [0.0]}
    found |= {"data/chunk_index": 0, "data/file_index": ROWS[episode]}
    for camera, name in enumerate(CAMERAS):
        file = CAMERA_FILES[camera][episode]
        begin = _rows_of_video(version, camera, file).index(first) / FPS
        found |= {f"videos/{name}/chunk_index": 0, f"videos/{name}/file_index": file}
        found |= {f"videos/{name}/from_timestamp": begin, f"videos/{name}/to_timestamp": begin + length / FPS}
    return found


def _path(version: str, template: str, file: int, camera: str = "") -> str:
    places = {"chunk_index": 0, "file_index": file, "episode_chunk": 0, "episode_index": file}
    return PATHS[version][template].format(**places, video_key=camera)


def _listed(row: Mapping[str, np.ndarray | np.generic]) -> dict[str, object]:
    return {name: value.tolist() for name, value in row.items()}


def _table(groups: Sequence[Sequence[Mapping[str, object]]]) -> bytes:
    kinds = {"action": pa.list_(pa.float32()), "observation.state": pa.list_(pa.float32()), "timestamp": pa.float32()}
    schema = pa.Table.from_pylist(list(groups[0])).schema
    schema = pa.schema([pa.field(field.name, kinds.get(field.name, field.type)) for field in schema])
    content = io.BytesIO()
    with pq.ParquetWriter(content, schema) as writer:
        for group in groups:
            writer.write_table(pa.Table.from_pylist(list(group), schema))
    return content.getvalue()


def _find_video(shown: Sequence[int], *, coded_alone: bool) -> bytes:
    """Encodes a video as LeRobot does (AV1, a key frame every 2), or with B-frames."""
    if coded_alone:
        more = {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "lp=1"}
        return video("libsvtav1", len(shown), rate=FPS, options=more, shown=shown)
    return video("libx264", len(shown), rate=FPS, options={"preset": "veryfast", "bf": "3", "g": "12"}, shown=shown)
