"""One rank that trains on a mix of joined datasets: run by a test, which kills it, its workers and its engine.

    python train.py FOLDER RECORDS RANK WORLD      goes on from the state in FOLDER/state.json, if it is there

Writes a line per step to RECORDS: {"state", "found", "workers", "engine"}; ends with the epoch.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from streamer import MixedDataset, StreamingDataLoader, StreamingDataset
from tests.inspection import inspect

BATCH = 24
# Of the samples of the first member, those from this one on are trained on.
FIRST = 40


def of_rows(sample: dict[str, Any]) -> dict[str, Any]:
    """Returns the number of the sample, and that of the joined row, or -1 if there is none."""
    other = sample["other"]
    return {"n": sample["n"], "row": -1 if other is None else int(np.asarray(other)[0]), "member": 0}


def of_tars(sample: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of a sample and its row of the other member."""
    return {"n": sample["json"]["n"], "row": int(np.asarray(sample["other"])[0]), "member": 1}


def mix_of(folder: Path, **options: Any) -> tuple[MixedDataset, list[StreamingDataset]]:
    """Returns a mix: rows joined to tars in another order and chosen by a condition, and tars joined to rows."""
    rows = StreamingDataset(folder / "rows", transform=of_rows)
    tars = StreamingDataset(folder / "left", transform=of_tars)
    others = [StreamingDataset(folder / name) for name in ("tars", "parquet")]
    on = ("uid", "meta.json.id.uid")
    first = rows.select(where=f"n >= {FIRST}").join(others[0], on=on, columns={"vector.npy": "other"}, missing="none")
    second = tars.join(others[1], on=("json.uid", "uid"), columns={"vector": "other"})
    made = MixedDataset({"rows": first, "tars": second}, seed=3, **options)
    return made, [first, second, rows, tars, *others]


def found_in(batch: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Returns member, sample and row of each."""
    columns = (np.asarray(batch[name]).tolist() for name in ("member", "n", "row"))
    return sorted(zip(*columns, strict=True))


def main() -> None:
    folder, records, rank, world = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    mix, datasets = mix_of(folder, rank=rank, world_size=world)
    with StreamingDataLoader(mix, BATCH // world, 1, report_every=None) as loader, records.open("a") as log:
        if (state := folder / "state.json").exists():
            loader.load_state_dict(json.loads(state.read_text()))
        for batch in loader:
            with datasets[0]._member.connections.for_requests() as connection:
                engine = connection.welcome.pid
            line = {"found": found_in(batch), "workers": inspect(loader).worker_pids, "engine": engine}
            log.write(json.dumps({"state": loader.state_dict(), **line}) + "\n")
            log.flush()
            time.sleep(0.05)
    for dataset in (mix, *datasets):
        dataset.close()


if __name__ == "__main__":
    main()
