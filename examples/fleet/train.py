"""The program of each rank: `python -m examples.fleet.train SETTINGS`, one epoch for each line of its input.

Lines of its output say that it is ready, that half of an epoch's samples are read, and that all are.
"""

from __future__ import annotations

import json
import sys

import msgspec

from examples.bucket.store import MANIFEST_URL, TARS_URL
from streamer import StreamingDataset


class Rank(msgspec.Struct, frozen=True):
    """Through which engine a rank reads, and the seed of its order."""

    engine: str
    seed: int


class Epoch(msgspec.Struct, frozen=True):
    """One epoch of one rank."""

    number: int
    rank: int
    ranks: int


def opened(rank: Rank, number: int, ranks: int) -> StreamingDataset:
    """The dataset as one of several ranks reads it; the engine has the credentials."""
    return StreamingDataset(
        TARS_URL,
        manifest=MANIFEST_URL,
        engine=rank.engine,
        seed=rank.seed,
        rank=number,
        world_size=ranks,
        decode=None,
    )


def read(rank: Rank, epoch: Epoch) -> int:
    """Reads an epoch; returns the number of samples."""
    dataset = opened(rank, epoch.rank, epoch.ranks)
    dataset.set_epoch(epoch.number)
    half, count = len(dataset) // 2, 0
    for _ in dataset:
        count += 1
        if count == half:
            print(json.dumps({"half": count}), flush=True)
    return count


def main(settings: str) -> None:
    """Until standard input ends."""
    rank = msgspec.json.decode(settings, type=Rank)
    print(json.dumps({"ready": len(opened(rank, 0, 1))}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"samples": read(rank, msgspec.json.decode(line, type=Epoch))}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
