"""Raw float32 blocks that cannot be compressed: the case where bytes per second count.

    python examples/scientific_arrays.py
    python examples/scientific_arrays.py --url s3://bucket/simulation/ --workers 4 --cache-bytes 500GB

Blocks of 4 channels x 64 x 64 x 64 (4 MiB) in `.npy` files. The first epoch computes each channel's mean and standard
deviation over all blocks, every one exactly once; the second one reads normalised blocks. Reading an `.npy` field
copies nothing: the array lies on the bytes that were read.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from streamer import StreamingDataLoader, StreamingDataset

CHANNELS, EDGE = 4, 64
# What the made data has, to compare with.
MEANS, DEVIATIONS = (0.0, 1.0, -2.0, 5.0), (1.0, 0.5, 2.0, 3.0)


def make_data(folder: Path, blocks: int) -> None:
    """Blocks of noise with another mean and deviation per channel."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(blocks):
        noise = rng.standard_normal((CHANNELS, EDGE, EDGE, EDGE), np.float32)
        scaled = noise * np.float32(DEVIATIONS).reshape(-1, 1, 1, 1) + np.float32(MEANS).reshape(-1, 1, 1, 1)
        np.save(folder / f"{number:05}.npy", scaled)


def moments(loader: StreamingDataLoader) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation per channel over one epoch."""
    count, total, squares = 0, torch.zeros(CHANNELS, dtype=torch.float64), torch.zeros(CHANNELS, dtype=torch.float64)
    for batch in loader:
        # On several ranks the last batch is filled with repeats: statistics must leave them out.
        fresh = torch.from_numpy(~loader.repeated)
        blocks = batch["npy"][fresh]
        count += blocks.numel() // CHANNELS
        # A float32 sum over one block is exact enough; over all of them it would not be.
        total += blocks.sum(dim=(2, 3, 4)).double().sum(dim=0)
        squares += blocks.square().sum(dim=(2, 3, 4)).double().sum(dim=0)
    mean = total / count
    return mean, (squares / count - mean**2).sqrt()


def run(url: str, cache: Path, arguments: argparse.Namespace) -> None:
    dataset = StreamingDataset(url, cache_dir=cache, cache_bytes=arguments.cache_bytes)
    with StreamingDataLoader(dataset, batch_size=arguments.batch_size, num_workers=arguments.workers) as loader:
        mean, deviation = moments(loader)
        print("mean     ", " ".join(f"{value:+.3f}" for value in mean.tolist()))
        print("deviation", " ".join(f"{value:+.3f}" for value in deviation.tolist()))
        shape = (1, CHANNELS, 1, 1, 1)
        shift, scale = mean.float().view(shape), deviation.float().view(shape)
        before = loader.stats()
        largest = max(float(((batch["npy"] - shift) / scale).abs().max()) for batch in loader)
        after = loader.stats()
    seconds = after.wait_seconds + after.step_seconds - before.wait_seconds - before.step_seconds
    rate = (after.nbytes - before.nbytes) / seconds
    print(f"epoch 1: largest normalised value {largest:.2f}, {rate / 1e6:,.0f} MB/s with the step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="folder of such .npy files; default: made here")
    parser.add_argument("--blocks", type=int, default=24, help="how many to make, 4 MiB each (default: 24)")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cache-bytes", default="auto", help='limit of the cache, e.g. "500GB" (default: auto)')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        url = arguments.url
        if url is None:
            url = f"{scratch}/blocks/"
            make_data(Path(url), arguments.blocks)
        run(url, Path(scratch) / "cache", arguments)


if __name__ == "__main__":
    main()
