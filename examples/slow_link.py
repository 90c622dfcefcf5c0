"""Raw float32 blocks over a link that is slower than the trainer: begin at once, use what has arrived several times.

    python examples/slow_link.py
    python examples/slow_link.py --url s3://lab/runs/ --shape 4,64,64 --reuse 5 --cache-bytes 200GB --workers 4

The case of https://stackoverflow.com/q/60119934: terabytes of incompressible blocks, a disk that holds a part of them,
and a GPU that reads faster than the network brings. Each round trains on the blocks that have arrived, each once; the
local set grows to the whole cache, and no block is used much more often than another one. Prints per epoch how often
blocks were used, how long the training waited, and which `reuse` the measured rates ask for.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from streamer import Growing, StreamingDataLoader, StreamingDataset
from streamer.decode import ArrayDecoder


def make_data(folder: Path, blocks: int, shape: tuple[int, ...]) -> None:
    """Raw blocks of noise; the first value of each is its number."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(blocks):
        block = rng.standard_normal(shape, np.float32)
        block.flat[0] = number
        block.tofile(folder / f"{number:05}.bin")


def train(loader: StreamingDataLoader, epochs: int, step_seconds: float) -> None:
    """Epochs of equal length; the step only sleeps."""
    uses: Counter[float] = Counter()
    for epoch in range(epochs):
        for batch in loader:
            # batch["bin"]: float32 (batch, *shape), a view on shared memory; no byte was copied by this process.
            uses.update(batch["bin"].flatten(1)[:, 0].tolist())
            time.sleep(step_seconds)
        stats, report = loader.stats(), loader.report()
        growing = stats.growing
        assert growing is not None
        print(
            f"epoch {epoch}: {len(loader)} steps, waited {report.share:.0%}; {growing.passes:.2f} passes have arrived, "
            f"{len(uses)} blocks seen, each {growing.least_uses} to {max(uses.values())} times; "
            f"{growing.live_bytes / 1e6:.0f} MB in use"
        )
        if report.growing:
            print(f"  {report.growing}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="folder of raw blocks; default: made here")
    parser.add_argument("--blocks", type=int, default=400, help="how many to make (default: 400)")
    parser.add_argument("--shape", default="4,32,32", help="of a block (default: 4,32,32)")
    parser.add_argument("--reuse", type=int, default=5, help="uses of each block per pass (default: 5)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--epoch-samples", type=int, default=400, help="blocks of an epoch (default: 400)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--step-seconds", type=float, default=0.01, help="what a step takes (default: 0.01)")
    parser.add_argument("--cache-bytes", default="4MB", help='limit of the cache, e.g. "200GB" (default: 4MB)')
    arguments = parser.parse_args()
    shape = tuple(map(int, arguments.shape.split(",")))
    with tempfile.TemporaryDirectory() as scratch:
        url = arguments.url
        if url is None:
            url = f"{scratch}/blocks/"
            make_data(Path(url), arguments.blocks, shape)
        dataset = StreamingDataset(
            url,
            cache_dir=None if arguments.url else f"{scratch}/cache",
            cache_bytes=arguments.cache_bytes,
            decode={"bin": ArrayDecoder("<f4", shape)},
            growing=Growing(reuse=arguments.reuse, epoch_samples=arguments.epoch_samples),
        )
        with StreamingDataLoader(dataset, arguments.batch_size, arguments.workers) as loader:
            train(loader, arguments.epochs, arguments.step_seconds)
        dataset.close()


if __name__ == "__main__":
    main()
