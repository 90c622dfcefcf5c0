"""One rank that reads epochs and says what it got: run as a program by the end-to-end tests.

    python consume.py '<json>'     keys: dataset (keyword arguments), url, loader ("ours" | "stock"), batch_size,
                                   workers, epochs, pause_at (batches after which it waits for a line on stdin),
                                   stop_after (batches), resume (state)

Prints one JSON line per batch: {"epoch", "batch", "samples": [[key, digest of the bytes], ...], "repeated": [...]}
and at the end {"state": the state after the last batch}.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch.utils.data

from streamer import StreamingDataLoader, StreamingDataset

# It is started as a file, from any folder.
sys.path.append(str(Path(__file__).parents[2]))
from tests.arguments import read_arguments

PAYLOAD = ("bin", "jpg")


def fingerprint(sample: dict[str, object]) -> list[object]:
    """Returns key and digest of the payload."""
    content = next(sample[name] for name in PAYLOAD if name in sample)
    return [sample["__key__"], hashlib.blake2b(content, digest_size=8).hexdigest()]


def as_fingerprints(samples: list[list[object]]) -> list[list[object]]:
    """Returns the samples as they are, in place of a collate_fn."""
    return samples


def batches(task: dict, dataset: StreamingDataset) -> Iterator[tuple[int, int, list, list]]:
    """Yields (epoch, batch, samples, repeated) of every batch."""
    if task["loader"] == "stock":
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=task["batch_size"], num_workers=task["workers"], collate_fn=as_fingerprints
        )
        for epoch in range(task["epochs"]):
            for number, batch in enumerate(loader):
                told = task["dataset"].get("batch_size")
                yield epoch, number, batch, dataset.repeated(number).tolist() if told else []
        return
    with StreamingDataLoader(
        dataset, batch_size=task["batch_size"], num_workers=task["workers"], collate_fn=as_fingerprints
    ) as loader:
        if task.get("resume"):
            loader.load_state_dict(task["resume"])
        for epoch in range(task["epochs"]):
            for number, batch in enumerate(loader):
                yield epoch, number, batch, loader.repeated.tolist()
                task["state"] = loader.state_dict()
                if number + 1 == task.get("stop_after"):
                    return


def main() -> None:
    task = json.loads(sys.argv[1])
    dataset = StreamingDataset(task["url"], transform=fingerprint, decode=None, **read_arguments(task["dataset"]))
    pauses = iter(task.get("pause_at", []))
    pause = next(pauses, None)
    for count, (epoch, number, samples, repeated) in zip(itertools.count(1), batches(task, dataset), strict=False):
        print(json.dumps({"epoch": epoch, "batch": number, "samples": samples, "repeated": repeated}), flush=True)
        if count == pause:
            print(json.dumps({"paused": count}), flush=True)
            sys.stdin.readline()
            pause = next(pauses, None)
    print(json.dumps({"state": task.get("state")}), flush=True)
    dataset.close()


if __name__ == "__main__":
    main()
