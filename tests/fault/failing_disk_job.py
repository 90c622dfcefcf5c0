"""Reads epochs of a dataset on a disk that fails: python failing_disk_job.py URL CACHE EPOCHS WORKERS

Prints what it read as JSON: distinct samples, wrong ones, skipped ones, and the bytes that the engine fetched.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from pathlib import Path

from streamer import Skip, StreamingDataLoader, StreamingDataset


def main(url: str, cache: str, epochs: int, workers: int) -> dict[str, object]:
    logging.basicConfig(level=logging.WARNING)
    dataset = StreamingDataset(
        url, format="folder", cache_dir=cache, batch_size=16, decode=None, seed=3, on_error=Skip(budget=1000)
    )
    read, wrong, seen = 0, 0, set()
    with StreamingDataLoader(dataset, num_workers=workers, collate_fn=list) as loader:
        for _ in range(epochs):
            for batch in loader:
                for sample in batch:
                    path = Path(url) / str(sample["__key__"])
                    good = hashlib.sha256(sample["bin"]).digest() == hashlib.sha256(path.read_bytes()).digest()
                    read, wrong = read + 1, wrong + (not good)
                    seen.add(sample["__key__"])
        fetched = loader.stats().engine.store_bytes
    return {"read": read, "distinct": len(seen), "wrong": wrong, "skipped": len(dataset.skipped), "fetched": fetched}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    print(json.dumps(main(arguments[0], arguments[1], int(arguments[2]), int(arguments[3]))))
