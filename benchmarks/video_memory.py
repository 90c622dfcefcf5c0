"""The memory of workers that decode clips of 1280x720: proportional set sizes by kind.

    python benchmarks/video_memory.py                8 workers, whole pictures and resized ones
    python benchmarks/video_memory.py --workers 2

The film is encoded here (x264, B-frames, a key frame every 60 frames); a sample is 16 frames, every second one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
from pathlib import Path

import av
import numpy as np
import psutil
from report import kept

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode import Frames
from streamer.formats import Video

WIDTH, HEIGHT, FRAMES, GOP = 1280, 720, 480, 60
BATCH = 4
PARTS = ("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem")


def encode(path: Path) -> None:
    """Writes a film of moving noise and stripes."""
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH * 2, 3), np.uint8)
    noise[:, :, :2] = np.arange(WIDTH * 2)[:, None] % 256
    with av.open(path, "w") as box:
        stream = box.add_stream("libx264", rate=30, options={"preset": "ultrafast", "bf": "2", "g": str(GOP)})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(FRAMES):
            at = 2 * number % WIDTH
            box.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(noise[:, at : at + WIDTH]), "rgb24")))
        box.mux(stream.encode(None))


def sizes(process: int) -> dict[str, int]:
    """Bytes of `PARTS` of a process; of one that has ended none."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return dict.fromkeys(PARTS, 0)
    found = dict(line.split(":") for line in lines)
    return {part: int(found[part].split()[0]) << 10 for part in PARTS}


class Peaks(threading.Thread):
    """Samples the sizes of all workers; keeps the largest of each."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found: dict[int, dict[str, int]] = {}
        self.together = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Looks every quarter of a second."""
        while not self.over.wait(0.25):
            now = {child.pid: sizes(child.pid) for child in psutil.Process().children(recursive=True)}
            decoders = {pid: each for pid, each in now.items() if _decodes(pid)}
            self.together = max(self.together, sum(each["Pss"] for each in decoders.values()))
            for pid, each in decoders.items():
                known = self.found.setdefault(pid, each)
                self.found[pid] = max(known, each, key=lambda size: size["Pss"])


def _decodes(pid: int) -> bool:
    try:
        return "libavcodec" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def measure(folder: Path, workers: int, size: tuple[int, int] | None) -> None:
    """One epoch."""
    dataset = StreamingDataset(
        folder,
        format=Video(16, num_indices_between_frames=2, num_indices_between_clip_starts=4),
        decode={"frames": Frames(size)},
        cache_dir=str(folder.parent / "cache"),
    )
    peaks = Peaks()
    with StreamingDataLoader(dataset, BATCH, workers, report_every=None) as loader:
        peaks.start()
        for batch in loader:
            shape = tuple(batch["frames"].shape)
        peaks.over.set()
        peaks.join()
    dataset.close()
    ends = {part: [each[part] / 1e6 for each in peaks.found.values()] for part in PARTS}
    print(f"{workers} workers, batches {shape}, {np.prod(shape) / 1e6:.0f} MB:")
    for part, values in ends.items():
        print(f"  {part:<10} {np.median(values):6.0f} MB a worker (median), {max(values):6.0f} MB (largest)")
    print(f"  together   {peaks.together / 1e6:6.0f} MB at the peak, {len(peaks.found)} processes that have FFmpeg")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    workers = parser.parse_args().workers
    with tempfile.TemporaryDirectory() as root, kept("video_memory", f"av {av.__version__}"):
        os.environ["STREAMER_RUNTIME_DIR"] = f"{root}/run"
        folder = Path(root, "films")
        folder.mkdir()
        encode(folder / "a.mp4")
        for size in (None, (224, 224)):
            measure(folder, workers, size)


if __name__ == "__main__":
    main()
