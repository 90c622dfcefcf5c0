"""The ranks of `test_short_lived_keys`: read epochs, compare every sample, say what they got as JSON lines.

python short_lived_rank.py '<json>'     keys: cache, rank, seconds, pause_seconds, samples
"""

from __future__ import annotations

import json
import logging
import sys
import time

OBJECT_BYTES = 100_000


def content_of(number: int) -> bytes:
    """What an object must hold."""
    return number.to_bytes(4, "big") * (OBJECT_BYTES // 4)


def main() -> None:
    """One rank of two."""
    task = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from streamer import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        "s3://bucket/train/", cache_dir=task["cache"], cache_bytes="64MB", decode=None, rank=task["rank"], world_size=2
    )
    end = time.monotonic() + task["seconds"]
    epoch = 0
    with StreamingDataLoader(dataset, 8, 0, report_every=None) as loader:
        while time.monotonic() < end:
            begun = time.monotonic()
            for batch in loader:
                waited = time.monotonic() - begun
                numbers = [int(key.rpartition("/")[2].removesuffix(".bin")) for key in batch["__key__"]]
                for number, content in zip(numbers, batch["bin"], strict=True):
                    assert content == content_of(number), number
                repeated = loader.repeated.tolist()
                own = [number for number, again in zip(numbers, repeated, strict=True) if not again]
                print(json.dumps({"epoch": epoch, "at": time.time(), "waited": waited, "numbers": own}), flush=True)
                time.sleep(task["pause_seconds"])
                begun = time.monotonic()
            print(json.dumps({"finished": epoch}), flush=True)
            epoch += 1
    dataset.close()


if __name__ == "__main__":
    main()
