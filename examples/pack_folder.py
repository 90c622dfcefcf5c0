"""Packs a class folder to tars, drops what is too small on the way, and trains on the result.

    python examples/pack_folder.py
    python examples/pack_folder.py --source s3://bucket/images/ --out s3://bucket/train/

Without --source it makes a folder of small arrays first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import streamer


def large_enough(sample: dict[str, Any]) -> dict[str, Any] | None:
    """Leaves arrays of less than 1 kB out, and notes the size of the others."""
    size = len(sample["npy"])
    return {**sample, "bytes": size} if size >= 1000 else None


def make_arrays(folder: Path) -> None:
    for number in range(300):
        path = folder / f"class{number % 3}" / f"{number:03d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full(number, number, np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="arrays")
    parser.add_argument("--out", default="packed")
    arguments = parser.parse_args()
    if arguments.source == "arrays":
        make_arrays(Path("arrays"))
    packed = streamer.pack(
        arguments.source, arguments.out, transform=large_enough, shard_bytes="100kB", executor="processes:1"
    )
    print(f"{packed.samples} samples in {packed.shards} shards, manifest {packed.digest}")
    dataset = streamer.StreamingDataset(packed.url, cache_dir="cache")
    sample = dataset[0]
    print(f"{len(dataset)} samples; the first: {sample['__key__']}, class {sample['cls']}, {sample['json']}")
    dataset.close()


if __name__ == "__main__":
    main()
