"""Texts with a varying number of pictures in rows of one length, at equal cost on all ranks.

    python examples/packed_vlm.py
    python examples/packed_vlm.py --length 4096 --ranks 8

A document is a text and 0 to 12 tiles of pictures, each of which takes 16 places of a row before the text. The cost of
a document is the number of its places; `Balance` makes the rows of all ranks cost the same in every step, attention
included. Ranks are simulated here, one after the other: under torchrun each would make its own loader.
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamer import Balance, Packing, StreamingDataLoader, StreamingDataset, measure_lengths

TILE, PLACES, PICTURE = 8, 16, 256


def make_documents(folder: Path, count: int) -> None:
    """Tars with a text of 20 to 900 bytes and tiles of 3 x 8 x 8 for each document."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number, part in enumerate(np.array_split(np.arange(count), 4)):
        with tarfile.open(folder / f"{number}.tar", "w") as shard:
            for document in part.tolist():
                tiles = rng.integers(0, 256, (int(rng.choice([0, 1, 2, 4, 6, 12])), 3, TILE, TILE), np.uint8)
                text = "word " * int(min(max(rng.lognormal(3, 0.8), 4), 180))
                picture = io.BytesIO()
                np.save(picture, tiles)
                for name, content in (
                    (f"{document:05}.npy", picture.getvalue()),
                    (f"{document:05}.txt", text.encode()),
                ):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    shard.addfile(entry, io.BytesIO(content))


def compose(sample: dict[str, object]) -> dict[str, object]:
    """Places for the tiles, then the text; the tiles themselves come one after the other for the whole batch."""
    tiles: npt.NDArray[np.uint8] = sample["npy"]
    text = np.frombuffer(sample["txt"].encode(), np.uint8).astype(np.int64)
    return {"input_ids": np.concatenate([np.full(PLACES * len(tiles), PICTURE), text]), "tiles": tiles}


def squares(document_ids: npt.NDArray[np.int32]) -> int:
    """What attention costs in some rows: the square of each document's length."""
    return sum(int((np.bincount(row)[1:] ** 2).sum()) for row in document_ids)


def steps_of(
    folders: tuple[str, Path, Path], arguments: argparse.Namespace, balance: Balance | None
) -> list[list[int]]:
    """Returns the cost of attention of each rank, step by step; checks that each tile has its places."""
    (url, cache, costs), ranks = folders, []
    for rank in range(arguments.ranks):
        packing = Packing(arguments.length, lengths=str(costs), overflow="drop", labels="shifted", fields=["input_ids"])
        dataset = StreamingDataset(
            url,
            cache_dir=cache,
            transform=compose,
            packing=packing,
            balance=balance,
            rank=rank,
            world_size=arguments.ranks,
        )
        with StreamingDataLoader(dataset, arguments.rows, report_every=None) as loader:
            found = []
            for batch in loader:
                places = int((batch["input_ids"] == PICTURE).sum())
                assert places == PLACES * len(batch["tiles"].values), "each tile has its places"
                found.append(squares(batch["document_ids"].numpy()))
        dataset.close()
        ranks.append(found)
    return ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=1024, help="places of a row (default: 1024)")
    parser.add_argument("--rows", type=int, default=2, help="rows of a rank in a step (default: 2)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--documents", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        url, cache, costs = f"{scratch}/documents/", Path(scratch) / "cache", Path(scratch) / "costs.npy"
        make_documents(Path(url), arguments.documents)
        every = StreamingDataset(url, cache_dir=cache, transform=compose)
        measure_lengths(every, "input_ids", path=costs)
        every.close()
        for balance in (None, Balance(rows_per_rank=arguments.rows, coefficients=(0, 1))):
            ranks = np.array(steps_of((url, cache, costs), arguments, balance))
            apart = (ranks.max(axis=0) / ranks.mean(axis=0)).mean()
            name = "balanced" if balance else "as they come"
            print(f"{name}: {ranks.shape[1]} steps, the dearest rank costs {apart:.3f} times the mean")


if __name__ == "__main__":
    main()
