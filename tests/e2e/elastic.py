"""One rank of a job that checkpoints its loader with torch.distributed.checkpoint: run by torchrun, or alone.

    torchrun --nproc-per-node 2 elastic.py '<json>'     keys: url, or members (name -> url) of a mix, cache_dir,
                                                        global_batch, workers, records (folder), checkpoint (folder),
                                                        every (steps between checkpoints),
                                                        dataset and loader (keyword arguments), hold_at (step)

Each rank writes a line per step to records/<launch>-<rank>.jsonl: {"epoch", "position", "samples", "repeated"}, then
meets the others in an all_reduce, as training does; there is no model. At `hold_at` it prints its pid and waits to be
killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from streamer import MixedDataset, Skip, StreamingDataLoader, StreamingDataset, Weights
from streamer.errors import StreamerError


def samples_of(batch: list[dict[str, object]]) -> list[str]:
    return [str(sample["__key__"]) for sample in batch]


def train(task: dict, loader: StreamingDataLoader, rank: int) -> None:
    checkpoint = Path(task["checkpoint"])
    saved = sorted(checkpoint.glob("*/.metadata"), key=lambda path: int(path.parent.name))
    if saved:
        dcp.load({"loader": loader}, checkpoint_id=saved[-1].parent)
    with open(Path(task["records"]) / f"{task['launch']}-{rank}.jsonl", "w") as records:
        for samples in loader:
            state = loader.state_dict()
            place = {"epoch": state["epoch"], "position": state["position"]}
            told = {**place, "samples": samples, "repeated": loader.repeated.tolist()}
            records.write(json.dumps(told) + "\n")
            records.flush()
            step = state["position"] // task["global_batch"]
            if dist.is_initialized():
                dist.all_reduce(torch.ones(1))
                if step % task["every"] == 0:
                    dcp.save({"loader": loader}, checkpoint_id=checkpoint / str(step))
                    dist.barrier()
            if step == task.get("hold_at"):
                # One write: the ranks share the pipe.
                os.write(1, f"{os.getpid()}\n".encode())
                threading.Event().wait(120)


def main() -> None:
    task = json.loads(sys.argv[1])
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")
    where = {"cache_dir": task["cache_dir"], "cache_bytes": "64MB"}
    if "members" in task:
        members = {name: StreamingDataset(url, **where) for name, url in task["members"].items()}
        weights = Weights(**task["dataset"]["weights"]) if "weights" in task["dataset"] else None
        dataset = MixedDataset(members, weights=weights)
    else:
        given = dict(task["dataset"])
        if "on_error" in given:
            given["on_error"] = Skip(**given["on_error"])
        dataset = StreamingDataset(task["url"], **where, **given)
    with StreamingDataLoader(
        dataset,
        task["global_batch"] // world,
        task["workers"],
        collate_fn=samples_of,
    ) as loader:
        try:
            train(task, loader, rank)
        except StreamerError as error:
            state = loader.state_dict()
            told = {"rank": rank, "kind": type(error).__name__, "text": str(error), "position": state["position"]}
            (Path(task["records"]) / f"error-{rank}.json").write_text(json.dumps(told))
    dataset.close()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
