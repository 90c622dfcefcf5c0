"""Makes datasets with lerobot's own writer, and every sample as its `LeRobotDataset` reads it, with windows.

PYTHONPATH=. python tests/formats/make/lerobot_sets.py FOLDER
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.formats.summary import write_expected

FPS, SIZE = 10, (96, 96)
CAMERAS = ("observation.images.top", "observation.images.wrist", "observation.images.side")
EPISODES = (27, 12, 23, 31, 9, 24)
CODECS = ("libsvtav1", "h264")
WINDOWS = {
    CAMERAS[0]: [-0.3, -0.1, 0.0, 0.2],
    CAMERAS[1]: [-0.5],
    "action": [0.0, 0.1, 0.2, 0.3, 0.4],
    "observation.state": [-0.1, 0.0],
}


def main(root: Path) -> None:
    for vcodec in CODECS:
        write(root / vcodec, vcodec)
        write_expected(root / vcodec, list(samples(root / vcodec)))
    (root / "windows.json").write_text(json.dumps(WINDOWS))


def restart_with_ffmpeg(folder: Path) -> None:
    """Starts this program again, so that torchcodec finds the libraries in PyAV's wheel."""
    import av

    folder.mkdir(parents=True)
    for library in (Path(av.__file__).parents[1] / "av.libs").iterdir():
        if found := re.fullmatch(r"(lib(?:av|sw)\w+)-\w+\.so\.(\d+)\..*", library.name):
            (folder / f"{found[1]}.so.{found[2]}").symlink_to(library)
    more = {"LD_LIBRARY_PATH": str(folder), "HF_HUB_OFFLINE": "1"}
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **more})


def write(root: Path, vcodec: str) -> None:
    """Writes a dataset; its files are so small that there are several."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    names = ["height", "width", "channels"]
    features = {camera: {"dtype": "video", "shape": (*SIZE, 3), "names": names} for camera in CAMERAS}
    features["action"] = {"dtype": "float32", "shape": (2,), "names": None}
    features["observation.state"] = {"dtype": "float32", "shape": (3,), "names": None}
    features["next.done"] = {"dtype": "bool", "shape": (1,), "names": None}
    made = LeRobotDataset.create("made/here", FPS, features, root=root, vcodec=vcodec)
    made.meta.update_chunk_settings(data_files_size_in_mb=0.01, video_files_size_in_mb=0.03)
    drawn = np.random.default_rng(0)
    for episode, length in enumerate(EPISODES):
        for frame in range(length):
            made.add_frame(
                {
                    **{camera: picture(drawn, frame + 10 * number) for number, camera in enumerate(CAMERAS)},
                    "action": drawn.random(2, np.float32),
                    "observation.state": drawn.random(3, np.float32),
                    "next.done": np.array([frame == length - 1]),
                    "task": f"task {episode % 3}",
                }
            )
        made.save_episode()
    made.finalize()


def picture(drawn: np.random.Generator, frame: int) -> np.ndarray:
    """Makes a square that moves over noise."""
    image = drawn.integers(0, 60, (*SIZE, 3), np.uint8)
    image[frame : frame + 20, 2 * frame % 70 : 2 * frame % 70 + 20] = 200
    return image


def samples(root: Path) -> Iterator[dict[str, object]]:
    """Yields what lerobot's reader says."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = LeRobotDataset("made/here", root=root, delta_timestamps=WINDOWS, video_backend="torchcodec")
    for number in range(len(data)):
        yield {name: value if name == "task" else as_stored(value.numpy()) for name, value in data[number].items()}


def as_stored(value: np.ndarray) -> np.ndarray | np.generic:
    """Returns frames as uint8, of which lerobot's are float32 in 0..1; numbers without a dimension."""
    if value.ndim < 3:
        return value[()]
    stored = np.round(value * 255).astype(np.uint8)
    assert (stored / np.float32(255) == value).all()
    return stored


if __name__ == "__main__":
    given = Path(sys.argv[1])
    if not (given / "ffmpeg").exists():
        restart_with_ffmpeg(given / "ffmpeg")
    main(given)
