"""Clips at key frames of a long film, beside webdataset and LitData over clips that were cut there before.

    python benchmarks/video_cut.py [--keep FOLDER] [--turns 2]

The film of ten minutes of `video.py`, 640x272: a clip of 16 frames at each key frame. streamer reads it by ranges
(`start="key"`) from its cache; webdataset and LitData read local shards of the same clips as mp4 of their own, which
`streamer pack` writes without encoding them anew, and decode them with torchcodec. Full size, RGB, batches of 8, two
workers, warm: after an epoch that is not counted, three in turns of programs of their own. CPU is that of the trainer,
its workers and the engine. What cannot be imported is left out by name. Results are kept in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from bounds import Bounds
from bytecode import compile_streamer
from report import kept
from video import COUNT, MIDDLE, make_films
from video_films import with_torchcodec

BATCH, WORKERS, EPOCHS = 8, 2, 3
# One of the least that both workers have several of.
SHARD_BYTES = "2MB"
OPTIONS = {"num_frames_per_clip": COUNT, "start": "key"}
Batches = Callable[[], Iterator[object]]


def decoded(content: bytes) -> object:
    """The frames of a small mp4."""
    from torchcodec.decoders import VideoDecoder

    return VideoDecoder(content, num_ffmpeg_threads=1).get_frames_in_range(0, COUNT).data


@contextlib.contextmanager
def by_streamer(folder: Path) -> Iterator[Batches]:
    """By ranges of the film."""
    from streamer import StreamingDataLoader, StreamingDataset
    from streamer.formats import Video

    dataset = StreamingDataset(folder / "films", format=Video(**OPTIONS), cache_dir=folder / "cache")  # type: ignore[arg-type]
    with contextlib.closing(dataset), StreamingDataLoader(dataset, BATCH, WORKERS, report_every=None) as loader:
        yield lambda: (batch["frames"] for batch in loader)


@contextlib.contextmanager
def by_webdataset(folder: Path) -> Iterator[Batches]:
    """Tars, shuffled by shards and within 64 samples."""
    import torch.utils.data
    from webdataset import WebDataset

    tars = list(map(str, sorted((folder / "tars").glob("*.tar"))))
    data = WebDataset(tars, shardshuffle=len(tars)).shuffle(64).map(lambda sample: decoded(sample["mp4"]))
    loader = torch.utils.data.DataLoader(data, BATCH, num_workers=WORKERS, persistent_workers=True)
    yield lambda: iter(loader)


@contextlib.contextmanager
def by_litdata(folder: Path) -> Iterator[Batches]:
    """Chunks of its own, shuffled."""
    import litdata

    class Decoded(litdata.StreamingDataset):  # type: ignore[misc]
        """Decodes what it reads."""

        def __getitem__(self, index: object) -> object:
            return decoded(super().__getitem__(index)["mp4"])

    data = Decoded(str(folder / "litdata"), shuffle=True)
    loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    yield lambda: iter(loader)


READERS = {"streamer": by_streamer, "webdataset": by_webdataset, "litdata": by_litdata}


def contents(folder: Path) -> Iterator[bytes]:
    """The clips in the tars."""
    for path in sorted((folder / "tars").glob("*.tar")):
        with tarfile.open(path) as tar:
            yield from (tar.extractfile(each).read() for each in tar if each.name.endswith(".mp4"))  # type: ignore[union-attr]


def write_litdata(folder: Path) -> None:
    """The clips in chunks of LitData."""
    from litdata.streaming import Cache

    cache = Cache(str(folder / "litdata"), chunk_bytes=2 << 20)
    for number, content in enumerate(contents(folder)):
        cache[number] = {"mp4": content}
    cache.done()
    cache.merge()


def cpu_seconds(since: float) -> float:
    """Of this process, its descendants, and the engine that it has started."""
    import psutil

    me, found = psutil.Process(), 0.0
    processes = {me, *me.children(recursive=True)}
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if each.create_time() >= since and "streamer.service" in " ".join(each.cmdline()):
                processes.add(each)
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += sum(each.cpu_times()[:2])
    return found


def run(name: str, folder: Path) -> None:
    """Prints clips, seconds and CPU seconds of each epoch of a reader."""
    begun, found = time.time(), []
    with READERS[name](folder) as batches:
        for _ in range(1 + EPOCHS):
            start, spent = time.perf_counter(), cpu_seconds(begun)
            clips = sum(len(batch) for batch in batches())  # type: ignore[arg-type]
            found.append((clips, time.perf_counter() - start, cpu_seconds(begun) - spent))
    print(json.dumps(found[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the films, kept for the next run")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with_torchcodec(Path(tempfile.gettempdir()) / "streamer-ffmpeg-links")
    if arguments.run:
        run(arguments.run[0], Path(arguments.run[1]))
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        compile_streamer()
        make_films(films := arguments.keep or folder / "made")
        (folder / "films").mkdir()
        (folder / "films" / "a.mp4").hardlink_to(films / MIDDLE)
        packing = ("pack", f"{folder}/films/", "--out", f"{folder}/tars/", "--format", "video", "--shard-bytes")
        options = ("--format-options", json.dumps(OPTIONS))
        subprocess.run([sys.executable, "-m", "streamer", *packing, SHARD_BYTES, *options], check=True)
        here = [name for name in READERS if importlib.util.find_spec(name)]
        versions = [f"{name} {version(name)}" for name in ("av", "torchcodec", *here[1:])]
        stack.enter_context(kept("video_cut", *versions))
        print("not importable, left out:", ", ".join(READERS.keys() - set(here)) or "none")
        if "litdata" in here:
            write_litdata(folder)
        count = sum(1 for _ in contents(folder))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in here}
        for _ in range(arguments.turns):
            for name in here:
                command = [sys.executable, __file__, "--run", name, str(folder)]
                told = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                for clips, seconds, spent in json.loads(told.splitlines()[-1]):
                    assert clips == count, (name, clips, count)
                    found[name].append((clips / seconds, spent / clips))
        bounds, means = Bounds(), {}
        for name, epochs in found.items():
            rates, spent = zip(*epochs, strict=True)
            means[name] = statistics.median(rates), statistics.median(spent)
            print(f"{name}: {', '.join(f'{rate:.1f}' for rate in rates)} clips/s of {count}", end="; ")
            print(f"CPU {means[name][1] * 1e3:.1f} ms a clip")
        for name in here[1:]:
            bounds.add(f"clips/s over {name}", means["streamer"][0] / means[name][0], 1.0, least=True)
            bounds.add(f"CPU a clip over {name}", means["streamer"][1] / means[name][1], 1.0)
        bounds.report()


if __name__ == "__main__":
    main()
