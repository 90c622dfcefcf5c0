"""One rank of a job whose engines share their caches: `auto_rank.py JSON`, then commands on stdin, answers on stdout.

The task has rank, world, master, port, url, manifest, options (of the storage), cache_dir, cache_bytes, batch (global),
pause (seconds after each), dataset (keyword arguments) and state. Each line of stdin is {"batches": at most so many of
an epoch}; each answer has the samples that were right, the number of repeats, the state after them, and what the engine
counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch.distributed as dist

from streamer import StreamingDataLoader, StreamingDataset
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.config import Environment
from tests.arguments import read_arguments
from tests.fault.peer_reader import sample


def number_of(batch: list[dict[str, bytes]]) -> list[int]:
    """The numbers of samples, each checked byte by byte."""
    found = []
    for one in batch:
        number = int.from_bytes(one["bin"][:8], "little")
        assert one["bin"] == sample(number), f"sample {number} is wrong"
        found.append(number)
    return found


def main() -> None:
    task = json.loads(sys.argv[1])
    os.environ["MASTER_ADDR"] = task["master"]
    address = f"tcp://{task['master']}:{task['port']}"
    dist.init_process_group("gloo", init_method=address, rank=task["rank"], world_size=task["world"])
    settings = ClientSettings.from_environment(Environment.read())
    dataset = StreamingDataset(
        task["url"],
        manifest=task["manifest"],
        storage_options=task["options"],
        cache_dir=task["cache_dir"],
        cache_bytes=task["cache_bytes"],
        decode=None,
        **read_arguments(task["dataset"]),
    )
    loader = StreamingDataLoader(
        dataset, batch_size=task["batch"] // task["world"], num_workers=0, collate_fn=number_of, report_every=None
    )
    if task["state"] is not None:
        loader.load_state_dict(task["state"])
    client = EngineClient(replace(settings, cache_dir=Path(task["cache_dir"]), cache_bytes=task["cache_bytes"]))
    print(json.dumps({"engine": client.welcome.pid}), flush=True)
    for line in sys.stdin:
        samples, repeated = [], 0
        for batch in islice(loader, json.loads(line)["batches"]):
            samples += [number for number, again in zip(batch, loader.repeated.tolist(), strict=True) if not again]
            repeated += int(loader.repeated.sum())
            time.sleep(task["pause"])
        state, counts = loader.state_dict(), client.statistics()
        print(json.dumps({"samples": samples, "repeated": repeated, "state": state, "counts": counts}), flush=True)


if __name__ == "__main__":
    main()
