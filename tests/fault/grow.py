"""One rank that trains on a growing dataset: run by the tests, alone or several with RANK and WORLD_SIZE.

    python grow.py '<json>'     keys: url, storage_options, cache_dir, cache_bytes, global_batch, workers, epochs,
                                reuse, epoch_samples, grow, length (of an array), records (file), step_seconds,
                                timeout_seconds, in_step (the ranks meet after each step), stop_after (steps)

Writes a line per step, {"place", "samples", "drawn"}, and the state beside it; goes on from that state. With stop_after
it ends without another word, as if it had been killed. At its end it prints its admissions or its error as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist

from streamer import Growing, StreamingDataLoader, StreamingDataset
from streamer.decode import ArrayDecoder
from streamer.errors import StreamerError


def numbered(sample: dict, rng: np.random.Generator) -> tuple[int, float]:
    """The number of a sample, and a random number of this use."""
    return int(sample["bin"][0]), float(rng.random())


def train(task: dict, loader: StreamingDataLoader) -> None:
    records = Path(task["records"])
    state_file = Path(f"{records}.state")
    if state_file.exists():
        loader.load_state_dict(json.loads(state_file.read_text()))
    steps = 0
    with records.open("a") as log:
        while (state := loader.state_dict())["epoch"] < task["epochs"]:
            for numbers, drawn in loader:
                state = loader.state_dict()
                place = state["epoch"] * task["epoch_samples"] + state["position"]
                log.write(json.dumps({"place": place, "samples": numbers.tolist(), "drawn": drawn.tolist()}) + "\n")
                log.flush()
                Path(f"{records}.new").write_text(json.dumps(state))
                Path(f"{records}.new").rename(state_file)
                steps += 1
                if steps == task.get("stop_after"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if dist.is_initialized() and task.get("in_step", True):
                    dist.barrier()
                time.sleep(task.get("step_seconds", 0.0))


def main() -> None:
    task = json.loads(sys.argv[1])
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=task.get("timeout_seconds", 60)))
    dataset = StreamingDataset(
        task["url"],
        storage_options=task.get("storage_options", {}),
        cache_dir=task["cache_dir"],
        cache_bytes=task["cache_bytes"],
        decode={"bin": ArrayDecoder("<f4", (task["length"],))},
        transform=numbered,
        growing=Growing(task["reuse"], task["epoch_samples"], task.get("grow", "auto")),
    )
    batch = task["global_batch"] // world
    with StreamingDataLoader(dataset, batch, task["workers"], report_every=None) as loader:
        try:
            train(task, loader)
            print(json.dumps({"admissions": loader.admissions, "waiting": loader.stats().wait_seconds}))
        except StreamerError as error:
            print(json.dumps({"error": type(error).__name__, "text": str(error)}))
    dataset.close()
    # Not destroy_process_group: it would wait for a rank that is gone.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
