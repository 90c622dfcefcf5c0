"""Joins: tables of keys by their number; what an epoch fetches of a right side that is ten times the cache; columns.

    python benchmarks/joins.py [--keys 10000000] [--samples 10000] [--only keys|orders|columns]

Keys: so many whole numbers and texts are hashed, sorted into a table and matched to the same keys in another order,
each in a process of its own: seconds per million, peak memory (resident, without what is mapped from files), and the
time to find a key among all, 10^6 at a time and one by one. 10^8 keys need 10 GB of disk in $TMPDIR and half an hour.

Orders: tars of `--samples` samples of 4 KB are joined to rows of 4 KB, from an S3 of this process that counts bytes and
requests of the right side in one epoch. The cache holds a tenth of the right side. The rows lie in the order of the
samples, in that order but for blocks of 1,000 rows that are shuffled, or in random order. Bytes are given as multiples
of those of the rows; Parquet in random order has no room. Prints a table and keeps it in
benchmarks/results/joins-keys-<date>.txt and joins-orders-<date>.txt.

Columns: a field of `--samples` samples of 4 KB in the smallest chunks is read for conditions, from an S3 that answers
each read after 20 ms, with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from report import kept

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if TYPE_CHECKING:
    from streamer import StreamingDataset
    from streamer.manifest.keys import Keys
    from tests.joins.buckets import Buckets

BATCH_KEYS = 1 << 16
SAMPLE_BYTES = ROW_BYTES = 4096
ORDERS = ("same", "blocks", "random")
KINDS = ("JSON lines", "Parquet")
STORE_DELAY_SECONDS = 0.02

# ---------------------------------------------------------------- keys


def run_keys(kind: str, count: int, folder: Path) -> dict[str, float]:
    """Makes and matches a table, in this process."""
    from streamer.manifest.joined import match
    from streamer.manifest.keys import KeyTable, build_keys, hash_values, number_keys

    def keys(numbers: np.ndarray) -> Keys:
        if kind == "numbers":
            return number_keys(numbers.astype(np.uint64))
        return hash_values([f"{number:032x}" for number in numbers.tolist()])

    def batches(step: int) -> Iterator[tuple[int, Keys]]:
        """All numbers below `count`, each once: `step` and `count` have no common divisor."""
        for first in range(0, count, BATCH_KEYS):
            numbers = np.arange(first, min(first + BATCH_KEYS, count), dtype=np.int64) * step % count
            yield first, keys(numbers)

    step = next(step for step in range(7919, 7919 + count) if np.gcd(step, count) == 1)
    table, matched = folder / "table", folder / "matched"
    table.mkdir()
    matched.mkdir()
    began = time.perf_counter()
    build_keys(batches(1), table)
    built = time.perf_counter()
    found = match((each for _, each in batches(step)), KeyTable.open(table), matched)
    ended = time.perf_counter()
    assert (found.rows, found.missing, found.several) == (count, 0, 0)
    opened = KeyTable.open(table)
    some = np.random.default_rng(1).integers(0, count, min(count, 1_000_000))
    wanted = keys(some)
    looked = time.perf_counter()
    assert np.array_equal(opened.ordinals[opened.find(wanted)[0]], some)
    once = time.perf_counter()
    for number in some[:2000].tolist():
        opened.rows_of(number if kind == "numbers" else f"{number:032x}")
    return {
        "s/10^6 sort": (built - began) / count * 1e6,
        "s/10^6 match": (ended - built) / count * 1e6,
        "MB": _peak_bytes() / 1e6,
        "us/find": (once - looked) / len(some) * 1e6,
        "us/single": (time.perf_counter() - once) / 2000 * 1e6,
    }


def _peak_bytes() -> int:
    """The most memory that this process had of its own, as far as the kernel tells: its peak without mapped files."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kb = {name: int(status[name].split()[0]) for name in ("VmHWM", "VmRSS", "RssFile")}
    return (kb["VmHWM"] - kb["RssFile"] if kb["VmHWM"] > kb["RssFile"] else kb["VmRSS"]) * 1024


def keys(count: int) -> None:
    """Prints a line for each kind of keys."""
    print(f"\n{count:,} keys")
    for number, kind in enumerate(("numbers", "texts")):
        with tempfile.TemporaryDirectory() as name:
            told = json.dumps({"kind": kind, "count": count, "folder": name})
            command = [sys.executable, __file__, "--run", told]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures = json.loads(done.stdout)
        if not number:
            print(f"{'':<10}" + "".join(f"{name:>14}" for name in figures))
        print(f"{kind:<10}" + "".join(f"{value:>14,.2f}" for value in figures.values()))


# ---------------------------------------------------------------- orders


def write_left(folder: Path, count: int) -> None:
    """Tars of 2,000 samples."""
    from tests.tars import tar_of

    random = np.random.default_rng(1)
    for first in range(0, count, 2000):
        entries = []
        for number in range(first, min(first + 2000, count)):
            entries += [
                (f"{number:08}.bin", random.bytes(SAMPLE_BYTES)),
                (f"{number:08}.json", json.dumps({"uid": f"{number:032x}"}).encode()),
            ]
        (folder / f"{first:08}.tar").write_bytes(tar_of(entries))


def write_right(folder: Path, kind: str, numbers: np.ndarray) -> None:
    """The rows as Parquet or as JSON lines."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(2)
    for shard, some in enumerate(np.array_split(numbers, 4)):
        uids = [f"{number:032x}" for number in some.tolist()]
        if kind == "JSON lines":
            lines = (json.dumps({"uid": uid, "text": random.bytes(ROW_BYTES // 2).hex()}) for uid in uids)
            (folder / f"{shard}.jsonl").write_text("".join(f"{line}\n" for line in lines))
            continue
        table = pa.table({"uid": uids, "row": [random.bytes(ROW_BYTES) for _ in uids]})
        # Row groups of 64 rows are a chunk of 256 kB, which is what pages of larger ones would be cut to.
        pq.write_table(table, folder / f"{shard}.parquet", row_group_size=64)


def one_epoch(buckets: Buckets, joined: StreamingDataset, samples: int) -> tuple[int, int]:
    """Bytes and requests of the right side."""
    from streamer import StreamingDataLoader

    sent, reads = buckets.store.sent["right"], len(buckets.store.reads)
    with StreamingDataLoader(joined, 64) as loader:
        assert sum(len(batch["__key__"]) for batch in loader) == samples
    return buckets.store.sent["right"] - sent, buckets.requests("right", reads)


def run_order(kind: str, order: str, samples: int, folder: Path) -> dict[str, Any]:
    """One epoch, in this process."""
    from streamer import Order
    from streamer.batches.samples.join_cost import join_cost
    from streamer.errors import StreamerError
    from tests.joins.buckets import Buckets

    numbers = np.arange(samples)
    if order == "random":
        numbers = np.random.default_rng(3).permutation(samples)
    elif order == "blocks":
        blocks = np.array_split(numbers, samples // 1000)
        numbers = np.concatenate([blocks[at] for at in np.random.default_rng(3).permutation(len(blocks))])
    for name in ("left", "right"):
        (folder / name).mkdir()
    write_left(folder / "left", samples)
    write_right(folder / "right", kind, numbers)
    os.environ["STREAMER_RUNTIME_DIR"] = f"{folder}/run"
    # Manifests take a part of it, too.
    cache_bytes = samples * ROW_BYTES // 10 + 1_000_000
    buckets = Buckets({name: folder / name for name in ("left", "right")}, folder, cache_bytes)
    try:
        # A shuffle window that is as small beside the cache as that of large data.
        left = buckets.dataset("left", decode={"bin": None}, order=Order(lanes=2, shuffle_window=2))
        right = buckets.dataset("right", decode=None)
        joined = left.join(right, on=("json.uid", "uid"))
        assert joined.samples == samples
        (join,) = joined._member.open().joins
        cost = join_cost(join, joined._member.open())
        chunk_bytes = float(join.manifest.chunk_local_bytes.mean())
        said, _ = cost.estimate(min(1.0, cache_bytes / cost.local_bytes))
        found = {"kB": chunk_bytes / 1e3, "uses": cost.uses, "said": said / cost.row_bytes}
        try:
            sent, requests = one_epoch(buckets, joined, samples)
        except StreamerError as error:
            return found | {"error": f"{type(error).__name__}: {error.message}".replace(f"{folder}", ".")}
        finally:
            for dataset in (joined, right, left):
                dataset.close()
        return found | {"bytes": sent / cost.row_bytes, "requests": requests / join.table.head.chunks}
    finally:
        buckets.close()


def orders(samples: int) -> None:
    """Prints a line for each kind and order."""
    print(
        f"\n{samples:,} samples, rows of {ROW_BYTES} B; bytes as multiples of those of the rows, requests per left "
        "chunk"
    )
    names = ("kB", "uses", "said", "bytes", "requests")
    print(f"{'':<34}" + "".join(f"{name:>10}" for name in names))
    for kind in KINDS:
        for order in ORDERS:
            with tempfile.TemporaryDirectory() as name:
                told = json.dumps({"kind": kind, "order": order, "samples": samples, "folder": name})
                command = [sys.executable, __file__, "--run", told]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            found = json.loads(done.stdout)
            figures = "".join(f"{found[name]:>10,.2f}" for name in names if name in found)
            print(f"{f'{kind}, {order}':<34}{figures}  {found.get('error', '')}")


# ---------------------------------------------------------------- columns


def run_columns(samples: int, folder: Path) -> dict[str, float]:
    """Reads a column, in this process."""
    from tests.joins.buckets import Buckets

    (folder / "left").mkdir()
    write_left(folder / "left", samples)
    os.environ["STREAMER_RUNTIME_DIR"] = f"{folder}/run"
    buckets = Buckets({"left": folder / "left"}, folder)
    try:
        # The smallest chunks.
        dataset = buckets.dataset("left", shuffle="sample")
        member = dataset._member
        manifest = member.open().manifest
        buckets.store.delay_seconds = STORE_DELAY_SECONDS
        began = time.perf_counter()
        with member._columns(manifest, None) as columns:
            columns.read(["json.uid"])
        seconds = time.perf_counter() - began
        dataset.close()
        return {"chunks": manifest.chunks, "requests": len(buckets.store.reads), "seconds": seconds}
    finally:
        buckets.close()


def columns(samples: int) -> None:
    """Prints the time of reading a column."""
    with tempfile.TemporaryDirectory() as name:
        told = json.dumps({"samples": samples, "folder": name})
        command = [sys.executable, __file__, "--run", told]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = json.loads(done.stdout)
    print(
        f"\n{samples:,} samples in {found['chunks']:,} chunks, a store that answers after "
        f"{STORE_DELAY_SECONDS * 1e3:.0f} ms: a column in {found['seconds']:.2f} s with {found['requests']:,} requests"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--only", choices=("keys", "orders", "columns"))
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        told = json.loads(arguments.run)
        told["folder"] = Path(told["folder"])
        run: Callable[..., object] = run_order if "order" in told else run_keys if "kind" in told else run_columns
        print(json.dumps(run(**told)))
        return
    parts = {
        "keys": lambda: keys(arguments.keys),
        "orders": lambda: orders(arguments.samples),
        "columns": lambda: columns(arguments.samples),
    }
    for part, run in parts.items():
        if arguments.only in (None, part):
            with kept(f"joins-{part}"):
                run()


if __name__ == "__main__":
    main()
