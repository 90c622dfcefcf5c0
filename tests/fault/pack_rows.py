"""One rank that trains on packed rows: run by a test, which kills it and starts it again.

    python pack_rows.py URL CACHE RECORDS ROW      goes on from the last whole line of RECORDS

Writes a line per step to RECORDS: {"state", "pieces"}, the documents of the batch as hex; ends with the epoch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from streamer import Balance, Packing, StreamingDataLoader, StreamingDataset
from tests.documents import pieces_in


def main() -> None:
    url, cache, row = sys.argv[1], sys.argv[2], int(sys.argv[4])
    records = Path(sys.argv[3])
    written = records.read_text() if records.exists() else ""
    # What follows the last whole line is of a step whose state was not saved.
    lines = written.splitlines() if written.endswith("\n") else written.splitlines()[:-1]
    records.write_text("".join(f"{line}\n" for line in lines))
    dataset = StreamingDataset(
        url, format="tokens", packing=Packing(row, rows_per_set=16), balance=Balance(rows_per_rank=2), cache_dir=cache
    )
    with StreamingDataLoader(dataset, 4, 1, report_every=None) as loader, records.open("a") as log:
        if lines:
            loader.load_state_dict(json.loads(lines[-1])["state"])
        for batch in loader:
            one = {name: np.asarray(batch[name]) for name in ("tokens", "document_ids")}
            pieces = [piece.hex() for piece in pieces_in([one]).elements()]
            log.write(json.dumps({"state": loader.state_dict(), "pieces": pieces}) + "\n")
            log.flush()
    dataset.close()
    print("done", flush=True)


if __name__ == "__main__":
    main()
