"""Two ranks that get one dataset, by a fork or a pickle: run by test_ranks.py.

python ranks.py FOLDER KIND READER START: writes what each rank reads in each of three epochs to FOLDER/rank-R.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch.multiprocessing
from torch import distributed
from torch.utils.data import DataLoader

from streamer import MixedDataset, Packing, StreamingDataLoader, StreamingDataset

EPOCHS, BATCH = 3, 5


def collate(samples: list[dict[str, object]]) -> list[int]:
    # Of a row the number of its document; each has one here.
    return [int(np.asarray(sample["x"]).reshape(-1)[0]) for sample in samples]


def make(kind: str, root: Path) -> StreamingDataset | MixedDataset:
    def one(name: str = "data", **options: object) -> StreamingDataset:
        return StreamingDataset(str(root / name), cache_dir=str(root / "cache"), **options)

    if kind == "mix":
        return MixedDataset({"a": one("a"), "b": one("b")}, batch_size=BATCH)
    if kind == "joined":
        return one(batch_size=BATCH).join(one("others"), on="x")
    if kind == "packed":
        return one("packed", packing=Packing(16, lengths=str(root / "costs.npy")), batch_size=BATCH)
    return one(batch_size=BATCH)


def read(reader: str, source: StreamingDataset | MixedDataset, between: object) -> list[list[int]]:
    if reader == "bare":
        loader = None
    elif reader == "own":
        loader = StreamingDataLoader(source, BATCH, 1, collate_fn=collate)
    else:
        workers = int(reader.removesuffix(" persistent"))
        options = {"persistent_workers": True} if "persistent" in reader else {}
        loader = DataLoader(source, BATCH, collate_fn=collate, num_workers=workers, **options)
    epochs = []
    for _ in range(EPOCHS):
        batches = ([collate([sample]) for sample in source]) if loader is None else list(loader)
        epochs.append([number for batch in batches for number in batch])
        between()  # type: ignore[operator]
    if reader == "own":
        loader.close()
    return epochs


def rank(number: int, source: StreamingDataset | MixedDataset, reader: str, root: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{root}/group", rank=number, world_size=2)
    time.sleep(0.3 * number)
    (Path(root) / f"rank-{number}.json").write_text(json.dumps(read(reader, source, distributed.barrier)))
    source.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    folder, kind, reader, start = sys.argv[1:]
    torch.multiprocessing.start_processes(
        rank, args=(make(kind, Path(folder)), reader, folder), nprocs=2, start_method=start
    )
