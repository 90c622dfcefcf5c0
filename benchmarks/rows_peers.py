"""Rows and buckets of other libraries on the lengths of `rows.py`: what stays empty, what is cut, what is lost.

    python -m venv peers && peers/bin/pip install . trl datasets transformers grain torchtitan lhotse
    peers/bin/pip install lancedb numba scipy accelerate && peers/bin/pip install --no-deps axolotl
    peers/bin/python benchmarks/rows_peers.py [--quick]

Runs the libraries' own packers, in an environment that has them; one that cannot be imported is named and left out.
Prints a table and keeps it in benchmarks/results/rows_peers-<date>.txt. Documents longer than a row are cut to it
before, for all of them alike, so that every rule has the same documents. "cut" are documents that are in two rows
though they fit into one, "lost" are tokens in no row. CPU time includes what a library does with the tokens (one byte
or one number for each), which the plan of streamer does not touch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from report import kept
from rows import CHUNK_BYTES, lengths

from streamer.order.rows.content import RowContent, row_counts
from streamer.order.rows.sets import chunks_per_set, make_sets
from streamer.order.rows.spec import RowSpec

Integers = npt.NDArray[np.int64]
# Rows made, documents cut, tokens in rows.
Packed = tuple[int, int, int]
# 4,000 documents are 260 rows and more of these lengths.
CASES = [("web", 8192), ("code", 32768), ("chat", 8192), ("pictures", 16384)]
LIBRARIES = ("trl", "grain", "torchtitan", "lhotse", "lancedb", "axolotl")


def streamer(costs: Integers, length: int) -> Packed:
    """Best fit in sets, as planned."""
    per_chunk = max(1, int(CHUNK_BYTES / (2 * costs.mean())))
    samples = np.diff(np.append(np.arange(0, len(costs), per_chunk), len(costs)))
    first = np.append(0, np.cumsum(samples))
    spec = RowSpec(length)
    sets = make_sets(samples, chunks_per_set(samples, int(costs.sum()), length, spec.set_rows), shuffle=True)

    def of_set(number: int) -> Integers:
        return np.concatenate([costs[first[c] : first[c + 1]] for c in sets.chunks(number).tolist()])

    return int(row_counts(spec, sets, of_set).sum()), 0, int(costs.sum())


def trl(costs: Integers, length: int, strategy: str) -> Packed:
    """`pack_dataset`, in blocks of a thousand documents as `Dataset.map` has them."""
    import pyarrow as pa
    from datasets import Dataset
    from trl.data_utils import pack_dataset

    ends = np.append(0, np.cumsum(costs))
    numbers = np.repeat(np.arange(len(costs), dtype=np.int32), costs)
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(ends), pa.array(numbers))})
    packed = pack_dataset(Dataset(table), length, strategy, {"keep_in_memory": True})
    rows = [np.asarray(row) for row in packed.with_format("numpy")["input_ids"]]
    return len(rows), _cut([np.unique(row) for row in rows]), sum(map(len, rows))


def grain(costs: Integers, length: int, rule: str, bins: int) -> Packed:
    """Grain's packers, of elements with one byte for each token."""
    import grain as library
    from grain import experimental

    elements = [{"tokens": np.ones(n, np.int8), "number": np.full(n, at)} for at, n in enumerate(costs.tolist())]
    source = library.MapDataset.source(elements).to_iter_dataset()
    options = {"num_packing_bins": bins} if bins else {}
    maker = getattr(experimental, f"{rule}IterDataset")
    rows, used, numbers = 0, 0, []
    for row in maker(source, length_struct={"tokens": length, "number": length}, **options):
        fields = row if isinstance(row, dict) else row[0]
        filled = fields["tokens"] != 0
        rows, used = rows + 1, used + int(filled.sum())
        numbers.append(np.unique(fields["number"][filled]))
    return rows, _cut(numbers), used


def torchtitan_chats(costs: Integers, length: int) -> Packed:
    """The greedy packing of `ChatDataset`."""
    from torchtitan.hf_datasets.text_datasets import ChatDataset

    class Lengths(ChatDataset):
        def __init__(self) -> None:
            self._eos_id, self.seq_len, self.infinite = 0, length, False
            self._sample_idx = self._epoch = 0
            self._dataset_id = "lengths"
            self._inputs_buffer, self._labels_buffer, self._positions_buffer = [], [], []
            self._pending_input_ids, self._pending_label_ids = [], []

        def _get_data_iter(self) -> Iterator[int]:
            return iter(costs.tolist())

        def _tokenize_sample(self, sample: int) -> tuple[list[int], list[int]]:
            return [1] * sample, [1] * sample

    rows = [int((inputs["input"] != 0).sum()) for inputs, _ in Lengths()]
    return len(rows), 0, sum(rows)


def torchtitan_pictures(costs: Integers, length: int) -> Packed:
    """`MMSamplePacker` with its usual buffer of 100 samples."""
    import torch
    from torchtitan.hf_datasets.multimodal.utils.packing import MMSamplePacker

    packer = MMSamplePacker(length)
    for n in costs.tolist():
        tokens = torch.ones(n, dtype=torch.int8)
        packer.add_sample({"input_ids": tokens, "labels": tokens, "positions": tokens})
    packer.flush()
    rows = [len(row["input_ids"]) for row in packer.packed_samples]
    return len(rows), 0, sum(rows)


def lancedb(costs: Integers, length: int) -> Packed:
    """`StreamingDataset(pack_sequences=...)`, which estimates the rows of an epoch; separators are no tokens here."""
    import lancedb as library
    import pyarrow as pa
    from lancedb.streaming import StreamingDataset

    ends = np.append(0, np.cumsum(costs))
    numbers = np.repeat(np.arange(len(costs), dtype=np.int32), costs)
    table = pa.table({"tokens": pa.LargeListArray.from_arrays(pa.array(ends), pa.array(numbers))})
    with tempfile.TemporaryDirectory() as folder:
        given = library.connect(folder).create_table("documents", table)
        dataset = StreamingDataset(
            given, columns=["tokens"], pack_sequences=length, eos_id=-1, pad_id=-2, blocks_per_epoch="auto"
        )
        rows = [row["input_ids"].numpy() for row in dataset]
    rows = [row[row >= 0] for row in rows]
    return len(rows), _cut([np.unique(row) for row in rows]), sum(map(len, rows))


def axolotl(costs: Integers, length: int) -> Packed:
    """`MultipackBatchSampler` of batches of one row."""
    from axolotl.utils.samplers.multipack import MultipackBatchSampler
    from torch.utils.data import SequentialSampler

    batches = MultipackBatchSampler(
        SequentialSampler(range(len(costs))), 1, length, costs, bin_size=200, drop_last=False, num_processes=1
    )
    rows = [np.array(row) for batch in batches for row in batch]
    return len(rows), _cut(rows), int(costs[np.unique(np.concatenate(rows))].sum())


def _cut(rows: list[Integers]) -> int:
    """Documents that are in several rows."""
    return int((np.unique(np.concatenate(rows), return_counts=True)[1] > 1).sum())


RULES: dict[str, Callable[[Integers, int], Packed]] = {
    "streamer, best fit": streamer,
    "TRL, bfd": lambda costs, length: trl(costs, length, "bfd_split"),
    "TRL, wrapped": lambda costs, length: trl(costs, length, "wrapped"),
    "Grain, first fit of 8 rows": lambda costs, length: grain(costs, length, "FirstFitPack", 8),
    "Grain, best fit of 64 rows": lambda costs, length: grain(costs, length, "BestFitPack", 64),
    "torchtitan, ChatDataset": torchtitan_chats,
    "torchtitan, MMSamplePacker": torchtitan_pictures,
    "LanceDB, pack_sequences": lancedb,
    "axolotl, MultipackBatchSampler": axolotl,
}


def row_table(documents: int) -> Iterator[str]:
    """All rules on all kinds of lengths."""
    for kind, length in CASES:
        costs = np.minimum(lengths(kind, documents), length)
        for name, rule in RULES.items():
            begin = time.process_time()
            try:
                rows, cut, used = rule(costs, length)
            except ImportError as error:
                yield f"{kind:<9} {length:>7,} {name:<30} left out: {error}"
                continue
            spent = (time.process_time() - begin) / documents * 1e6
            lost = 1 - used / int(costs.sum())
            yield (
                f"{kind:<9} {length:>7,} {name:<30} {rows:>6,} {1 - used / (rows * length):>8.2%} "
                f"{cut / documents:>7.1%} {lost:>7.2%} {spent:>8.1f}"
            )


def durations(count: int) -> Integers:
    """Frames of 10 ms like those of read speech: most of 12 to 16 seconds, the others shorter."""
    rng = np.random.default_rng(0)
    long = rng.normal(1430, 120, count).clip(1200, 1750)
    return np.where(rng.random(count) < 0.7, long, rng.uniform(150, 1200, count)).astype(np.int64)


def bucket_table(count: int, seconds: int = 400) -> Iterator[str]:
    """Padding of batches of up to 400 s, steps of an epoch, and the time to the first batch."""
    frames = durations(count)
    budget = seconds * 100
    begin = time.perf_counter()
    spec = RowSpec(budget, "buckets", "error", most=budget)
    per_chunk = 200  # 8 MiB of 16 kHz FLAC
    samples = np.diff(np.append(np.arange(0, count, per_chunk), count))
    first = np.append(0, np.cumsum(samples))
    # As Buckets counts: a set has 256 batches on average.
    sets = make_sets(samples, chunks_per_set(samples, int(frames.sum()), budget, spec.set_rows), shuffle=True)
    content, places, steps = RowContent(spec, 17), 0, 0
    for number in range(len(sets)):
        numbers = np.concatenate([np.arange(first[c], first[c + 1]) for c in sets.chunks(number).tolist()])
        rows = content.rows(frames[numbers], numbers, 0)
        if number == 0:
            until_first = time.perf_counter() - begin
        counts, longest = np.diff(rows.first), np.maximum.reduceat(rows.items.size, rows.first[:-1])
        places, steps = places + int((counts * longest).sum()), steps + len(rows)
    yield f"streamer, Buckets             {1 - frames.sum() / places:>8.2%} {steps:>7,} {until_first:>10.2f}"
    try:
        yield from _lhotse(frames, seconds)
    except ImportError as error:
        yield f"lhotse                        left out: {error}"


def _lhotse(frames: Integers, seconds: int) -> Iterator[str]:
    from lhotse import CutSet, MonoCut
    from lhotse.dataset import DynamicBucketingSampler

    cuts = CutSet.from_cuts(MonoCut(str(at), 0, n / 100, 0) for at, n in enumerate(frames.tolist()))
    begin = time.perf_counter()
    sampler = DynamicBucketingSampler(cuts, max_duration=seconds, shuffle=True, num_buckets=30, duration_bins=None)
    places, steps, used = 0, 0, 0
    for batch in sampler:
        if steps == 0:
            until_first = time.perf_counter() - begin
        sizes = [round(cut.duration * 100) for cut in batch]
        places, steps, used = places + len(sizes) * max(sizes), steps + 1, used + sum(sizes)
    yield f"lhotse, DynamicBucketing 30   {1 - used / places:>8.2%} {steps:>7,} {until_first:>10.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the documents; the results are not kept")
    quick = parser.parse_args().quick
    scale = 10 if quick else 1
    with kept("rows_peers", *_versions(), keep=not quick):
        print("\nkind          row rule                          rows  padding     cut    lost us/document, CPU")
        for line in row_table(4_000 // scale):
            print(line)
        print("\nbatches of speech, 400 s     padding   steps  first batch, s")
        for line in bucket_table(50_000 // scale):
            print(line)


def _versions() -> Iterator[str]:
    for name in LIBRARIES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"no {name}"


if __name__ == "__main__":
    main()
