"""What a pack costs: CPU of `streamer.pack` from local files to local tars, beside webdataset's own writer.

The files have 110 KB, as many as --samples says, in 100 class folders. In turns, on one process each; the first turn,
which reads the files from the disk, is not shown. At the end webdataset reads the tars, and they are compared.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from report import kept

import streamer

TURNS = 3
SHARD_BYTES = 100_000_000


def make_files(folder: Path, count: int) -> int:
    """The files; returns their bytes."""
    numbers, total = random.Random(0), 0
    for number in range(count):
        path = folder / f"{number % 100:03d}/{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        total += path.write_bytes(b"\xff\xd8\xff" + numbers.randbytes(numbers.randrange(90_000, 130_000)))
    return total


def by_streamer(source: Path, target: Path) -> None:
    streamer.pack(source, target, shard_bytes=SHARD_BYTES, executor="processes:1")


def by_webdataset(source: Path, target: Path) -> None:
    """As its documentation writes: a ShardWriter, one process."""
    from webdataset import ShardWriter

    target.mkdir()
    classes = {path.name: number for number, path in enumerate(sorted(source.iterdir()))}
    with ShardWriter(f"{target}/%06d.tar", maxsize=SHARD_BYTES, maxcount=10**9, verbose=0) as writer:
        for path in sorted(source.glob("*/*.jpg")):
            key = f"{path.parent.name}/{path.stem}"
            writer.write({"__key__": key, "jpg": path.read_bytes(), "cls": classes[path.parent.name]})


def cpu() -> tuple[float, float, int]:
    """User and system seconds and page faults of this process and those that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(x.ru_utime for x in both), sum(x.ru_stime for x in both), sum(x.ru_minflt for x in both)


def measured(work: Callable[[Path, Path], None], source: Path, target: Path, total: int) -> str:
    """One pack."""
    shutil.rmtree(target, ignore_errors=True)
    before, begun = cpu(), time.monotonic()
    work(source, target)
    seconds = time.monotonic() - begun
    user, system, faults = (b - a for a, b in zip(before, cpu(), strict=True))
    return (
        f"{(user + system) / total * 1e9:5.2f} CPU s/GB (user {user / total * 1e9:.2f}, system "
        f"{system / total * 1e9:.2f})  {faults / total * 1e9:9,.0f} faults/GB  {total / seconds / 1e6:5.0f} MB/s"
    )


def compare(source: Path, target: Path) -> str:
    """What webdataset reads of the tars."""
    from webdataset import WebDataset

    classes = sorted(path.name for path in source.iterdir())
    seen, different = set(), 0
    for sample in WebDataset(sorted(map(str, target.glob("*.tar"))), shardshuffle=False):
        fields = {name: value for name, value in sample.items() if not name.startswith("__")}
        key = sample["__key__"]
        wanted = {"jpg": (source / f"{key}.jpg").read_bytes(), "cls": b"%d" % classes.index(key.partition("/")[0])}
        different += fields != wanted
        seen.add(key)
    return f"webdataset reads {len(seen):,} samples, {different} of them different"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, kept("pack"):
        source, target = Path(folder, "raw"), Path(folder, "tars")
        total = make_files(source, arguments.samples)
        print(f"{arguments.samples:,} files, {total / 1e9:.3f} GB")
        measured(by_streamer, source, target, total)
        for _ in range(TURNS):
            print("webdataset   ", measured(by_webdataset, source, target, total))
            print("streamer.pack", measured(by_streamer, source, target, total))
            sys.stdout.flush()
        print(compare(source, target))


if __name__ == "__main__":
    main()
