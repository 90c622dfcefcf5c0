"""Random clips out of a few videos, in another place in each epoch.

    python examples/video_clips.py
    python examples/video_clips.py --epochs 5 --workers 2

Makes videos in which every frame is brighter than the one before, so that the brightness of a frame says when it is
shown, and compares that with the times that the samples have.
"""

from __future__ import annotations

import argparse
import tempfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode import Frames
from streamer.formats import Video

VIDEOS, FRAMES, RATE = 4, 100, 25
HEIGHT, WIDTH = 96, 128


def make_data(folder: Path) -> None:
    """Grey videos, two levels brighter with each frame."""
    for number in range(VIDEOS):
        with av.open(str(folder / f"video{number}.mp4"), "w") as file:
            stream = file.add_stream("libx264", rate=RATE, options={"g": "20", "bf": "2", "preset": "veryfast"})
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            for place in range(FRAMES):
                grey = np.full((HEIGHT, WIDTH, 3), 20 + 2 * place, np.uint8)
                frame = av.VideoFrame.from_ndarray(grey, "rgb24")
                frame.pts, frame.time_base = place, Fraction(1, RATE)
                file.mux(stream.encode(frame))
            file.mux(stream.encode(None))


def run(folder: Path, arguments: argparse.Namespace) -> None:
    """Compares each frame with its time."""
    dataset = StreamingDataset(
        folder / "videos",
        format=Video(num_frames_per_clip=8, num_indices_between_frames=2, start="random"),
        decode={"frames": Frames(size=(48, 64))},
        cache_dir=folder / "cache",
    )
    with StreamingDataLoader(dataset, batch_size=4, num_workers=arguments.workers, report_every=None) as loader:
        for epoch in range(arguments.epochs):
            clips, begins, worst = 0, list[float](), 0.0
            for batch in loader:
                frames, times = batch["frames"].float(), batch["pts_seconds"]
                shown = (frames.mean(dim=(2, 3, 4)) - 20) / 2
                worst = max(worst, float((shown - times * RATE).abs().max()))
                begins += times[:, 0].tolist()
                clips += len(frames)
            first = ", ".join(f"{begin:.2f}" for begin in sorted(begins)[:4])
            print(
                f"epoch {epoch}: {clips} clips of {tuple(frames.shape[1:])}, the first at {first} s; "
                f"frames are at their times: {worst < 0.9}"
            )


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "videos").mkdir()
        make_data(Path(folder) / "videos")
        run(Path(folder), arguments)


if __name__ == "__main__":
    main()
