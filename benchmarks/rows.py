"""What rows of one length cost and leave empty: padding, planning, start at 1e9 documents, making.

    python benchmarks/rows.py [--quick] [--only TABLE]

Prints tables and keeps them in benchmarks/results/rows-<date>.txt, one alone in rows-TABLE-<date>.txt. Lengths are
drawn like those of texts of the web, source code, chats, and pictures of tiles with a text. The aims: at most 0.3 %
padding, 0.1 % where a set has 1,000 rows; order and first batch of 1e9 documents in 200 ms; rows at 0.8 of the bytes/s
of the same documents unpacked, and of the CPU time where this process makes them.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from report import Tables, kept, print_tables

from streamer import Estimate, Packing, StreamingDataLoader, StreamingDataset
from streamer.base.cgroup import usable_cores
from streamer.batches.rows.pieces import Pieces
from streamer.batches.rows.planned import PlannedRows, RowsRecipe
from streamer.batches.rows.table import Documents, RowTable
from streamer.formats import Tokens
from streamer.order import EpochOrder, OrderSpec, RankPlan
from streamer.order.row_order import RowOrder, row_window
from streamer.order.rows.content import RowContent, row_counts
from streamer.order.rows.sets import chunks_per_set, make_sets
from streamer.order.rows.spec import RowSpec
from streamer.order.spec import auto_lanes
from streamer.tables.tokens.megatron import encode_index

Integers = npt.NDArray[np.int64]
CHUNK_BYTES = 8 << 20
# Epochs of each kind, of which the fastest counts.
TURNS = 5
# Texts of the web in a chunk. A number, so that a start does not draw lengths to find it (60 ms, 2026-11-26).
WEB_DOCUMENTS = 4700
# Kind, tokens of a row, bytes of a document besides its tokens of two bytes.
CASES = [
    ("web", 2048, 0),
    ("web", 8192, 0),
    ("code", 32768, 0),
    ("code", 131072, 0),
    ("chat", 8192, 0),
    ("pictures", 16384, 90_000),
]


def lengths(kind: str, count: int) -> Integers:
    """Tokens of documents."""
    rng = np.random.default_rng(0)
    if kind == "web":
        found = rng.lognormal(np.log(490), 1.09, count).clip(16, 200_000)
    elif kind == "code":
        found = rng.lognormal(np.log(700), 1.55, count).clip(8, 400_000)
    elif kind == "chat":
        found = rng.gamma(1.3, 480, count).clip(12, 16_000)
    else:
        shares = [0.08, 0.17, 0.13, 0.17, 0.15, 0.12, 0.1, 0.08]
        tiles = rng.choice([0, 1, 2, 4, 6, 9, 12, 13], count, p=shares)
        found = tiles * 256 + rng.lognormal(np.log(90), 1.0, count).clip(8, 8000)
    return found.astype(np.int64)


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of a call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def padding_row(kind: str, length: int, other_bytes: int, documents: int) -> str:
    """One dataset: its sets, what stays empty, and what planning takes."""
    costs = lengths(kind, documents)
    per_chunk = max(1, int(CHUNK_BYTES / (2 * costs.mean() + other_bytes)))
    samples = np.diff(np.append(np.arange(0, documents, per_chunk), documents))
    first = np.append(0, np.cumsum(samples))
    spec, tokens = RowSpec(length), int(costs.sum())
    per_set = chunks_per_set(samples, tokens, length, spec.set_rows)
    sets = make_sets(samples, per_set, shuffle=True)

    def of_set(number: int) -> Integers:
        return np.concatenate([np.arange(first[c], first[c + 1]) for c in sets.chunks(number).astype(int)])

    begin = time.process_time()
    counts = row_counts(spec, sets, lambda number: costs[of_set(number)])
    table = (time.process_time() - begin) / documents * 1e6
    content, members = RowContent(spec, 17), of_set(0)
    opened = [cpu_seconds(lambda e=epoch: content.rows(costs[members], members, e)) for epoch in (0, 1)]
    joined = RowContent(RowSpec(length, "concat"), 17).rows(costs[members], members, 0).items
    whole = costs[members[joined.document]] <= length
    cut = len(np.unique(joined.document[whole & (joined.size < costs[members[joined.document]])]))
    fits = int((costs[members] <= length).sum())
    rows = int(counts.sum())
    return (
        f"{kind:<9} {length:>7,} {documents:>9,} {len(sets):>5} {per_set:>7} {rows / len(sets):>8.0f} "
        f"{1 - tokens / (rows * length):>8.3%} {cut / fits:>9.1%} {table:>8.2f} "
        + " ".join(f"{seconds / len(members) * 1e6:>8.2f}" for seconds in opened)
    )


def estimated_row(safety: float, scatter: float, documents: int, length: int = 8192) -> str:
    """One epoch of a set, planned by estimates that are right on average: rows too long, tokens lost, padding."""
    tokens = lengths("web", documents)
    planned = tokens * np.random.default_rng(1).normal(1, scatter, documents)
    costs = np.maximum(planned, 1).astype(np.int64)
    packing = Packing(length, lengths=Estimate(1, safety))
    rows = RowContent(packing.spec(), 17).rows(costs, np.arange(documents), 0)
    items = rows.items
    pieces = Pieces(items.document, items.begin, items.size, costs[items.document], rows.first)
    found = dict(enumerate(tokens[items.document].tolist()))
    settled, whole = pieces.settle(found, packing), pieces.settle(found, Packing(1 << 24))
    long = np.add.reduceat(whole.size, rows.first[:-1]) > length
    kept = int(settled.size.sum())
    return (
        f"{scatter:>7.0%} {safety:>7.0%} {long.mean():>9.1%} {settled.overflowed / whole.size.sum():>7.2%} "
        f"{1 - kept / (len(rows) * length):>8.1%}"
    )


def start_row(kind: str, length: int, documents: int, ranks: int = 64, rows: int = 4) -> str:
    """A resumed rank of 64 in the middle of an epoch; the table is that of the sets that are looked at, repeated."""
    costs = lengths(kind, 1 << 20)
    per_chunk = int(CHUNK_BYTES / (2 * costs.mean()))
    chunks = -(-documents // per_chunk)
    samples = np.full(chunks, per_chunk)
    spec, batch = RowSpec(length), ranks * rows
    per_set = chunks_per_set(samples, int(costs.mean() * documents), length, spec.set_rows)
    sets = make_sets(samples, per_set, shuffle=True)

    def of_set(number: int) -> tuple[Integers, Integers]:
        numbers = np.concatenate([np.arange(c * per_chunk, (c + 1) * per_chunk) for c in sets.chunks(number).tolist()])
        return costs[numbers % len(costs)], numbers

    known = row_counts(
        spec, make_sets(samples[: 8 * per_set], per_set, shuffle=False), lambda number: of_set(number)[0]
    )
    counts = np.resize(known, len(sets))
    lanes = auto_lanes(len(sets), batch)
    window = row_window(len(sets), chunks, batch, lanes, None)
    order_spec = OrderSpec("0" * 32, 17, "block", lanes, window, rows=spec)

    def plan() -> RankPlan:
        return RankPlan(RowOrder(EpochOrder(order_spec, counts, 3), sets), batch, ranks, ranks // 2)

    begin = time.process_time()
    own = plan()
    found = own.batch(own.batches // 2).ordinals
    order = time.process_time() - begin
    first = np.append(0, np.cumsum(counts))
    content = RowContent(spec, 17)
    numbers = np.unique(np.searchsorted(first, found, side="right") - 1)
    packing = cpu_seconds(lambda: [content.rows(*of_set(number), 3) for number in numbers.tolist()])
    schedule = cpu_seconds(lambda: own.schedule(own.batches // 2, own.batches // 2 + 50))
    return (
        f"{kind:<9} {length:>7,} {documents:>14,} {len(sets):>7,} {int(counts.sum()):>12,} {order * 1e3:>9.1f} "
        f"{packing * 1e3:>9.1f} {schedule * 1e3:>9.1f}"
    )


def documents_of(path: Path, count: int) -> Documents:
    """The first documents of a file of costs, in chunks that all have the same costs."""
    samples, column = np.full(count // WEB_DOCUMENTS, WEB_DOCUMENTS), np.load(path, mmap_mode="r")
    return Documents(
        manifest_digest="0" * 32,
        digest="0" * 32,
        chunk_samples=samples,
        chunk_first=np.append(0, np.cumsum(samples)),
        costs=lambda numbers: column[numbers].astype(np.int64),
        shuffle=True,
        reopen=partial(documents_of, path, count),
    )


def write_costs(path: Path, count: int) -> None:
    """An int32 for each document, chunk after chunk the same ones."""
    column = np.lib.format.open_memmap(path, "w+", np.int32, (count,))
    costs = lengths("web", WEB_DOCUMENTS)
    for first in range(0, count, 1000 * WEB_DOCUMENTS):
        part = column[first : first + 1000 * WEB_DOCUMENTS]
        part[:] = np.resize(costs, len(part))
    column.flush()


def write_table(path: Path, documents: Documents) -> None:
    """The table, without packing each set: those of as many chunks have as many rows."""
    spec = RowSpec(8192)
    tokens = int(documents.costs(np.arange(int(documents.chunk_samples[0]))).sum())
    per_set = chunks_per_set(documents.chunk_samples, tokens * len(documents.chunk_samples), spec.length, spec.set_rows)
    sets = make_sets(documents.chunk_samples, per_set, shuffle=True)
    sizes, last = np.diff(sets.first), len(sets) - 1
    made = {
        int(sizes[n]): row_counts(
            spec, sets.part(n, n + 1), lambda _, n=n: documents.costs(documents.list_documents(sets.chunks(n)))
        )
        for n in (0, last)
    }
    counts = np.array([made[size][0] for size in sizes.tolist()])
    RowTable(sets, counts, sizes * tokens, 0 * counts).write(path)


def start_given(path: Path, count: int) -> str:
    """A resumed rank of 64 in a process of its own, to its first batch: times, and memory besides mapped files."""

    def memory() -> float:
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024

    before, begin, cpu = memory(), time.perf_counter(), time.process_time()
    documents = documents_of(path, count)
    recipe = RowsRecipe(packing=Packing(8192), spec=RowSpec(8192), shuffle=True, table=path.with_suffix(".arrows"))
    planned = PlannedRows(recipe, documents)
    opened = time.perf_counter() - begin
    sets, chunks = len(planned.counts), len(documents.chunk_samples)
    lanes = auto_lanes(sets, 256)
    window = row_window(sets, chunks, 256, lanes, None)
    spec = OrderSpec("0" * 32, 17, "block", lanes, window, rows=RowSpec(8192))
    own = RankPlan(RowOrder(EpochOrder(spec, planned.counts, 3), planned.sets), 256, 64, 32)
    rows = own.batch(own.batches // 2).ordinals
    for row in rows.tolist():
        planned.pieces(row, 17, 3)
    whole = time.perf_counter() - begin
    return (
        f"{count:,} documents, {planned.rows:,} rows: len {opened * 1e3:.0f} ms, first batch {whole * 1e3:.0f} ms "
        f"({(time.process_time() - cpu) * 1e3:.0f} ms of CPU), "
        f"{memory() - before:.0f} MB"
    )


def given_rows(count: int) -> Iterator[str]:
    """A start with costs and table in their files; and the table of a part of them, in processes."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "costs.npy"
        write_costs(path, count)
        write_table(path.with_suffix(".arrows"), documents_of(path, count))
        for _ in range(3):
            yield subprocess.check_output([sys.executable, __file__, "--given", str(path)], text=True).strip()
        documents = documents_of(path, count // 10)
        begin, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        rows = RowTable.make(RowSpec(8192), documents).counts.sum()
        seconds = (time.perf_counter() - begin) / documents.chunk_first[-1]
        cores, each = usable_cores(), seconds * 1e6
        spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - cpu
        yield (
            f"table of {documents.chunk_first[-1]:,} documents, {rows:,} rows, {cores} processes: "
            f"{each:.2f} us a document, {spent / documents.chunk_first[-1] * 1e6:.2f} us of CPU"
        )


def write_tokens(folder: Path, costs: Integers) -> None:
    """Four files as Megatron-LM writes them."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number, part in enumerate(np.array_split(costs, 4)):
        rng.integers(0, 50_000, int(part.sum()), dtype=np.uint16).tofile(folder / f"{number}.bin")
        (folder / f"{number}.idx").write_bytes(encode_index("<u2", part.astype(np.int32)))


def epoch_seconds(folder: str, packing: Packing | None, batch_size: int, workers: int) -> tuple[float, float]:
    """The second epoch, warm: seconds until the last batch, and CPU seconds of this process."""
    dataset = StreamingDataset(f"{folder}/data", format=Tokens(), cache_dir=f"{folder}/cache", packing=packing)
    ragged = () if packing else ("tokens",)
    with StreamingDataLoader(dataset, batch_size, workers, ragged=ragged, report_every=None) as loader:
        for _ in loader:
            pass
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in loader:
            pass
        spent = time.perf_counter() - begin, time.process_time() - cpu
    dataset.close()
    return spent


def making_rows(documents: int) -> Iterator[str]:
    """Documents in rows of 8,192 tokens, and the same documents unpacked, through the cache."""
    costs = lengths("web", documents)
    with tempfile.TemporaryDirectory() as scratch:
        write_tokens(Path(scratch) / "data", costs)
        for workers in (0, 1):
            kinds = [(None, 4 * 8192 // int(costs.mean())), (Packing(8192), 4)]
            # In turn: a machine that others use is slower for minutes.
            turns = [[epoch_seconds(scratch, *kind, workers) for kind in kinds] for _ in range(TURNS)]
            (wall, cpu), (row_wall, row_cpu) = np.min(turns, axis=0)
            tokens = costs.sum() / 1e6
            # A worker process has its own CPU time.
            by_cpu = f"{cpu / row_cpu:>6.2f}" if workers == 0 else ""
            yield f"{workers:>7} {tokens / wall:>10.1f} {tokens / row_wall:>8.1f} {wall / row_wall:>6.2f} {by_cpu}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the documents; the results are not kept")
    parser.add_argument("--given", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    arguments = parser.parse_args()
    if arguments.given is not None:
        print(start_given(arguments.given, len(np.load(arguments.given, mmap_mode="r"))))
        return
    name = f"rows-{arguments.only}" if arguments.only else "rows"
    with kept(name, f"numpy {np.__version__}", keep=not arguments.quick):
        print_tables(TABLES, arguments.only, 10 if arguments.quick else 1)


TABLES: Tables = {
    "padding": (
        "kind          row documents  sets  chunks rows/set  padding  cut by  us/document, CPU: \n"
        "                                     /set                   concat    table  epoch 0  epoch 1",
        400_000,
        lambda count: (padding_row(kind, length, other, count) for kind, length, other in CASES),
    ),
    "estimates": (
        "web, rows of 8,192 tokens, tokens estimated with a scatter: rows that get too long, tokens lost\n"
        "scatter  safety  too long    lost  padding",
        80_000,
        lambda count: (
            estimated_row(safety, scatter, count) for scatter in (0.05, 0.1) for safety in (0.0, 0.02, 0.05, 0.1)
        ),
    ),
    "start": (
        "start in mid-epoch, 64 ranks of 4 rows, CPU ms\n"
        "kind          row      documents    sets         rows order+batch  packing schedule of 50",
        10**9,
        lambda count: (
            start_row(kind, length, documents)
            for kind, length, documents in [
                ("web", 8192, count // 1000),
                ("web", 8192, count),
                ("code", 32768, count // 10),
            ]
        ),
    ),
    "making": (
        f"making rows of 8,192 tokens with positions and documents, warm, million tokens/s, the best of {TURNS} turns\n"
        "workers  documents     rows  ratio of CPU",
        30_000,
        making_rows,
    ),
    "given": ("start with costs and table in files, wall; table in processes", 10**9, given_rows),
}


if __name__ == "__main__":
    main()
