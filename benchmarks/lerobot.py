"""Warm epochs over a data set of LeRobot with three cameras of 96 x 96, and what their decoding alone would allow.

    python benchmarks/lerobot.py [--episodes 8] [--rounds 3] [--quick]

Episodes of 200 frames, films in AV1 as LeRobot encodes them (a key frame every 2, crf 30). "frames": a picture of each
camera and a row; "windows": two pictures of each camera and 16 actions. Everything is in the cache, 2 workers, batch
64, batches of tensors; three epochs a round, medians of the rounds. Decoding alone: the pictures of 400 samples in one
process; its bound is that of two cores that do nothing else. Results are kept in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bounds import Bounds
from formats import BATCH, warm_rate
from loader_ways import all_ready
from report import kept

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode import Frames
from streamer.formats import LeRobot
from tests.videos import same_scheduling

FPS, EDGE, LENGTH, WORKERS = 30, 96, 200, 2
DECODED = 400
CAMERAS = tuple(f"observation.images.{name}" for name in ("top", "left", "right"))
KINDS = {
    "frames": LeRobot(),
    "windows": LeRobot(
        delta_timestamps={
            **{camera: [-1 / FPS, 0.0] for camera in CAMERAS},
            "action": [step / FPS for step in range(16)],
        }
    ),
}


def write(root: Path, episodes: int) -> None:
    """Writes a data set with one film for each camera."""
    rng = np.random.default_rng(0)
    rows = [
        {"action": rng.random(7, np.float32), "observation.state": rng.random(14, np.float32),
         "timestamp": np.float32(frame / FPS), "frame_index": frame, "episode_index": episode,
         "index": episode * LENGTH + frame, "task_index": 0}
        for episode in range(episodes) for frame in range(LENGTH)
    ]  # fmt: skip
    table(root / "data/chunk-000/file-000.parquet", rows)
    table(root / "meta/tasks.parquet", [{"task_index": 0, "task": "push"}])
    films = {f"videos/{camera}/{name}": 0 for camera in CAMERAS for name in ("chunk_index", "file_index")}
    table(
        root / "meta/episodes/chunk-000/file-000.parquet",
        [
            {"episode_index": episode, "length": LENGTH, "data/chunk_index": 0, "data/file_index": 0, **films,
             **{f"videos/{camera}/from_timestamp": episode * LENGTH / FPS for camera in CAMERAS}}
            for episode in range(episodes)
        ],
    )  # fmt: skip
    for camera in CAMERAS:
        film(root / f"videos/{camera}/chunk-000/file-000.mp4", len(rows), rng)
    sizes = {"action": ("float32", 7), "observation.state": ("float32", 14), "timestamp": ("float32", 1)}
    sizes |= dict.fromkeys(["frame_index", "episode_index", "index", "task_index"], ("int64", 1))
    features = {name: {"dtype": dtype, "shape": [size]} for name, (dtype, size) in sizes.items()}
    features |= {camera: {"dtype": "video", "shape": [EDGE, EDGE, 3]} for camera in CAMERAS}
    data, video = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", "videos/{video_key}/chunk-000"
    info = {"codebase_version": "v3.0", "fps": FPS, "features": features, "data_path": data}
    (root / "meta/info.json").write_text(json.dumps(info | {"video_path": f"{video}/file-{{file_index:03d}}.mp4"}))


def table(path: Path, rows: Sequence[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


@same_scheduling()
def film(path: Path, frames: int, rng: np.random.Generator) -> None:
    """A square that moves over a still background."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ground = np.repeat(np.repeat(rng.integers(0, 200, (12, 12, 3), np.uint8), 8, 0), 8, 1)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libsvtav1", rate=FPS, options={"g": "2", "crf": "30", "svtav1-params": "lp=2"})
        stream.width, stream.height, stream.pix_fmt = EDGE, EDGE, "yuv420p"
        for number in range(frames):
            picture, at = ground.copy(), int(36 + 30 * np.sin(number / 20))
            picture[at : at + 24, 2 * number % 70 : 2 * number % 70 + 24] = 240
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


def opened(stack: ExitStack, root: Path, chosen: LeRobot) -> StreamingDataLoader:
    """A loader of which everything is in the cache, and all workers have started."""
    dataset = StreamingDataset(root / "set", format=chosen, cache_dir=root / "cache")
    stack.callback(dataset.close)
    loader = stack.enter_context(StreamingDataLoader(dataset, BATCH, WORKERS, report_every=None, drop_last=True))
    while True:
        for batch in loader:
            del batch
        if all_ready(loader):
            return loader


def decoding_seconds(root: Path, chosen: LeRobot) -> float:
    """CPU seconds of decoding the pictures of a sample, in this process alone."""
    dataset = StreamingDataset(root / "set", format=chosen, decode=None, cache_dir=root / "cache")
    places = np.random.default_rng(0).permutation(len(dataset))[:DECODED].tolist()
    records = [memoryview(sample[camera]) for sample in map(dataset.__getitem__, places) for camera in CAMERAS]
    dataset.close()
    begun = time.process_time()
    for record in records:
        Frames().decode(record)
    return (time.process_time() - begun) / len(places)


def report(root: Path, rows: int, rounds: int, bounds: Bounds) -> None:
    print(f"{'':10}{'samples/s':>10}{'decoding alone':>16}{'its bound/s':>13}{'of bound':>10}")
    for name, chosen in KINDS.items():
        found = []
        for _ in range(rounds):
            with ExitStack() as stack:
                loader = opened(stack, root, chosen)
                found.append((warm_rate(loader, rows // BATCH * BATCH).per_second, decoding_seconds(root, chosen)))
        rate = statistics.median(per_second for per_second, _ in found)
        alone = statistics.median(seconds for _, seconds in found)
        most = WORKERS / alone
        print(f"{name:10}{rate:10,.0f}{alone * 1e6:13,.0f} us{most:13,.0f}{rate / most:10.2f}")
        bounds.add(f"{name}: samples/s, or what decoding allows", rate, min(500, most), least=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="2 episodes, one round, keep nothing")
    options = parser.parse_args()
    if options.quick:
        options.episodes, options.rounds = 2, 1
    bounds = Bounds()
    rows = options.episodes * LENGTH
    size = f"{rows} rows, {len(CAMERAS)} cameras of {EDGE} x {EDGE}, PyAV {av.__version__}"
    with tempfile.TemporaryDirectory() as place, kept("lerobot", size, keep=not options.quick):
        write(Path(place) / "set", options.episodes)
        report(Path(place), rows, options.rounds, bounds)
        bounds.report()


if __name__ == "__main__":
    main()
