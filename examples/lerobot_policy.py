"""A small policy on a data set of LeRobot: the next four actions, from two cameras.

    python examples/lerobot_policy.py
    python examples/lerobot_policy.py --epochs 12 --workers 2

Makes a data set (v3) of a hand that moves to a goal: one camera sees the hand, the other one the goal. An episode is
part of a video of each camera and of a file of rows. At the end of an episode there are no four more actions: the loss
leaves out what `action_is_pad` says.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from fractions import Fraction
from itertools import groupby
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from streamer import StreamingDataLoader, StreamingDataset
from streamer.formats import LeRobot

FPS, EDGE, AHEAD = 10, 64, 4
HAND, GOAL = "observation.images.hand", "observation.images.goal"
# Episodes of a file.
TOGETHER = {"data": 20, HAND: 8, GOAL: 13}
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def drive(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An episode: places of the hand, the goal at each time, and actions; (n, 2), in 0..1."""
    hand, goal = rng.uniform(0.1, 0.9, (2, 2)).astype(np.float32)
    places, actions = [], []
    for _ in range(12):
        places.append(hand)
        actions.append(np.clip(goal - hand, -0.1, 0.1))
        hand = hand + actions[-1]
    return np.array(places), np.tile(goal, (len(places), 1)), np.array(actions)


def write_set(root: Path, count: int) -> None:
    """Writes the files as LeRobot's writer does."""
    rng = np.random.default_rng(0)
    episodes = [drive(rng) for _ in range(count)]
    rows, index = [], []
    begins = dict.fromkeys(TOGETHER, 0)
    for number, (places, _, actions) in enumerate(episodes):
        files = {name: number // together for name, together in TOGETHER.items()}
        begins = {name: 0 if number % TOGETHER[name] == 0 else begin for name, begin in begins.items()}
        index.append({"episode_index": number, "length": len(places), "dataset_from_index": len(rows)})
        index[-1] |= {"data/chunk_index": 0, "data/file_index": files["data"]}
        for name in (HAND, GOAL):
            index[-1] |= {f"videos/{name}/chunk_index": 0, f"videos/{name}/file_index": files[name]}
            index[-1][f"videos/{name}/from_timestamp"] = begins[name] / FPS
        begins = {name: begin + len(places) for name, begin in begins.items()}
        rows += [
            {"observation.state": place, "action": action, "timestamp": np.float32(frame / FPS), "frame_index": frame,
             "episode_index": number, "index": len(rows) + frame, "task_index": 0}
            for frame, (place, action) in enumerate(zip(places, actions, strict=True))
        ]  # fmt: skip
    for file, members in groupby(rows, lambda row: row["episode_index"] // TOGETHER["data"]):
        write_table(root / DATA.format(chunk_index=0, file_index=file), list(members))
    for which, name in enumerate((HAND, GOAL)):
        for file in range(-(-count // TOGETHER[name])):
            some = episodes[file * TOGETHER[name] : (file + 1) * TOGETHER[name]]
            shown = np.concatenate([episode[which] for episode in some])
            write_video(root / VIDEO.format(video_key=name, chunk_index=0, file_index=file), shown)
    write_table(root / "meta/episodes/chunk-000/file-000.parquet", index)
    write_table(root / "meta/tasks.parquet", [{"task_index": 0, "task": "move to the goal"}])
    features = {name: {"dtype": "video", "shape": [EDGE, EDGE, 3]} for name in (HAND, GOAL)}
    features |= {name: {"dtype": "float32", "shape": [2]} for name in ("observation.state", "action")}
    integers = dict.fromkeys(["frame_index", "episode_index", "index", "task_index"], "int64")
    features |= {name: {"dtype": dtype, "shape": [1]} for name, dtype in (integers | {"timestamp": "float32"}).items()}
    info = {"codebase_version": "v3.0", "fps": FPS, "features": features, "data_path": DATA, "video_path": VIDEO}
    (root / "meta/info.json").write_text(json.dumps(info))


def write_table(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_video(path: Path, places: np.ndarray) -> None:
    """A video of a white square at these places; a key frame every 2, as LeRobot encodes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=FPS, options={"g": "2", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = EDGE, EDGE, "yuv420p"
        for number, (x, y) in enumerate((places * (EDGE - 12)).astype(int).clip(0, EDGE - 12)):
            picture = np.zeros((EDGE, EDGE, 3), np.uint8)
            picture[y : y + 12, x : x + 12] = 255
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


class Policy(nn.Module):
    """Where features are in pictures, and of these points actions."""

    def __init__(self, pictures: int, points: int = 2) -> None:
        super().__init__()
        self.see = nn.Conv2d(3, points, 5, stride=2, bias=False)
        self.act = nn.Sequential(nn.Linear(2 * points * pictures, 64), nn.ReLU(), nn.Linear(64, 2 * AHEAD))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Returns actions (n, AHEAD, 2) for pictures (n, pictures, 3, height, width)."""
        heat = self.see(pictures.flatten(0, 1).float() / 255).abs()
        weight = heat / heat.sum((2, 3), keepdim=True)
        line = torch.linspace(-1, 1, heat.shape[-1])
        points = torch.stack([(weight.sum(2) * line).sum(-1), (weight.sum(3) * line).sum(-1)], -1)
        return 0.1 * self.act(points.reshape(len(pictures), -1)).unflatten(1, (AHEAD, 2))


def train(dataset: StreamingDataset, arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    policy = Policy(3)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    with StreamingDataLoader(dataset, batch_size=32, num_workers=arguments.workers, report_every=None) as loader:
        for epoch in range(arguments.epochs):
            frames = padded = 0
            errors = []
            for batch in loader:
                pictures = torch.cat([batch[HAND], batch[GOAL].unsqueeze(1)], 1)
                error = (policy(pictures) - batch["action"]).abs()[~batch["action_is_pad"]].mean()
                optimizer.zero_grad()
                error.backward()
                optimizer.step()
                errors.append(error.item())
                frames += len(pictures)
                padded += int(batch["action_is_pad"].sum())
            print(f"epoch {epoch}: {frames} frames, {padded} actions padded, {np.mean(errors):.4f} off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    windows = {HAND: [-1 / FPS, 0.0], "action": [step / FPS for step in range(AHEAD)]}
    with tempfile.TemporaryDirectory() as scratch:
        write_set(Path(scratch) / "set", arguments.episodes)
        chosen = LeRobot(delta_timestamps=windows)
        dataset = StreamingDataset(f"{scratch}/set", format=chosen, cache_dir=f"{scratch}/cache")
        train(dataset, arguments)
        dataset.close()


if __name__ == "__main__":
    main()
