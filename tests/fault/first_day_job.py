"""The trainer of `test_first_day`: reads epochs, compares every sample, says what it has done as JSON lines."""

from __future__ import annotations

import json
import logging
import random
import sys
import time


def content_of(key: str, nbytes: int) -> bytes:
    """What a sample must hold."""
    return random.Random(key).randbytes(nbytes)


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    told = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    from streamer import StreamingDataLoader, StreamingDataset
    from streamer.errors import StreamerError

    begun = time.monotonic()
    dataset = StreamingDataset(told["url"], cache_dir=told["cache"], cache_bytes=told["cache_bytes"], decode=None)
    try:
        with StreamingDataLoader(dataset, 8, told["workers"], report_every=None) as loader:
            batches = 0
            for epoch in range(told["epochs"]):
                seen: list[str] = []
                for batch in loader:
                    for key, content in zip(batch["__key__"], batch["bin"], strict=True):
                        assert content == content_of(key.rpartition("/")[2].removesuffix(".bin"), len(content)), key
                    seen += batch["__key__"]
                    batches += 1
                    say(batch=batches, seconds=time.monotonic() - begun)
                    time.sleep(told["pause_seconds"])
                assert len(seen) == len(set(seen)) == told["samples"], (len(seen), len(set(seen)))
                say(epoch=epoch)
    except StreamerError as error:
        say(error=type(error).__name__, text=str(error), seconds=time.monotonic() - begun)
        return
    finally:
        dataset.close()
    say(done=batches, seconds=time.monotonic() - begun)


if __name__ == "__main__":
    main()
