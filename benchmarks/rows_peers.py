"""Rows and buckets of other libraries on the lengths of `rows.py`: what stays empty, what is cut, what is lost.

    python -m venv peers && peers/bin/pip install . trl datasets transformers grain torchtitan lhotse
    peers/bin/pip install lancedb numba scipy accelerate && peers/bin/pip install --no-deps axolotl
    PYTHONPATH=Megatron-LM peers/bin/python benchmarks/rows_peers.py [--quick] [--only TABLE]

Runs the libraries' own packers, in an environment that has them; one that cannot be imported is named and left out.
Megatron-LM's scheduler is in none of its wheels (megatron-core 0.16.1): a clone of NVIDIA/Megatron-LM on PYTHONPATH,
and triton, which it imports, by `pip install --no-deps triton` where torch is the one for CPUs.
Prints tables and keeps them in benchmarks/results/rows_peers-<date>.txt; one alone in rows_peers-TABLE-<date>.txt.

rows: documents longer than a row are cut to it before, for all of them alike, so that every rule has the same
documents. "cut" are documents that are in two rows though they fit into one, "lost" are tokens in no row. CPU time
includes what a library does with the tokens (one byte or one number for each), which the plan of streamer does not
touch.

balance: 64 ranks of 4 rows in a step, the same documents for all: cost of the dearest rank by the mean of all, without
the padding at the end of rows, for two costs of a document of n tokens; and what is sent between all ranks. Others
than streamer load as many documents for a step as 4 rows of each rank have on average.

resume: stopped on 4 ranks, finished on 2; every token is a number of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from report import Tables, kept, print_tables
from rows import CHUNK_BYTES, lengths

from streamer import Packing, StreamingDataLoader, StreamingDataset
from streamer.batches.rows.explain import dearest_rank
from streamer.batches.rows.options import ROW_COST
from streamer.batches.rows.planned import PlannedRows, RowsRecipe
from streamer.batches.rows.table import Documents, RowTable
from streamer.formats import Tokens
from streamer.order.rows.content import RowContent
from streamer.order.rows.sets import chunks_per_set, make_sets
from streamer.order.rows.spec import RowSpec
from streamer.tables.tokens.megatron import encode_index

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from torch.utils.data import IterableDataset

Integers = npt.NDArray[np.int64]
Tokenized = npt.NDArray[np.int32]
# Rows made, documents cut, tokens in rows.
Packed = tuple[int, int, int]
# Of each rank in a step the tokens of its documents, of all steps; and bytes that are sent in a step.
Dealt = tuple[list[list[Integers]], float]
# 4,000 documents are 260 rows and more of these lengths.
CASES = [("web", 8192), ("code", 32768), ("chat", 8192), ("pictures", 16384)]
BALANCED = [("web", 8192), ("code", 32768), ("chat", 8192), ("pictures", 8192)]
LIBRARIES = ("trl", "grain", "torchtitan", "lhotse", "lancedb", "axolotl", "transformers")
RANKS, ROWS = 64, 4
# Of the tokens of a document, and of their square: the default of `Balance`, and that of BatchRebalanceSampler.
COSTS = (ROW_COST, (1000, 1))


def planned(costs: Integers, length: int) -> PlannedRows:
    """The rows of documents in chunks of 8 MiB, of tokens of two bytes."""
    per_chunk = max(1, int(CHUNK_BYTES / (2 * costs.mean())))
    first = np.append(np.arange(0, len(costs), per_chunk), len(costs))
    documents = Documents("0" * 32, "0" * 32, np.diff(first), first, lambda numbers: costs[numbers], shuffle=True)
    recipe = RowsRecipe(packing=Packing(length), spec=RowSpec(length), shuffle=True, table=Path())
    return PlannedRows(recipe, documents, RowTable.make(recipe.spec, documents))


def streamer(costs: Integers, length: int) -> Packed:
    """Best fit in sets, as planned."""
    rows = planned(costs, length)
    found = [rows.pieces(number, 17, 0) for number in range(rows.rows)]
    return len(found), _cut([row.document for row in found]), sum(int(row.size.sum()) for row in found)


def trl(costs: Integers, length: int, strategy: str) -> Packed:
    """`pack_dataset`, in blocks of a thousand documents as `Dataset.map` has them."""
    from datasets import Dataset
    from trl.data_utils import pack_dataset

    table = _documents(costs, np.repeat(np.arange(len(costs), dtype=np.int32), costs))
    packed = pack_dataset(Dataset(table.rename_columns(["input_ids"])), length, strategy, {"keep_in_memory": True})
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
    rows = [int((inputs["input"] != 0).sum()) for inputs, _ in _chats(costs, length)]
    return len(rows), 0, sum(rows)


def _chats(costs: Integers, length: int) -> IterableDataset[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """A `ChatDataset` of documents of these lengths."""
    from datasets import Dataset
    from torchtitan.hf_datasets.text_datasets import ChatDataset

    class Lengths(ChatDataset):
        def __init__(self) -> None:
            self._eos_id, self.seq_len, self.infinite = 0, length, False
            self._sample_idx = self._epoch = 0
            self._dataset_id, self._data = "lengths", Dataset.from_dict({"tokens": costs})
            self._inputs_buffer, self._labels_buffer, self._positions_buffer = [], [], []
            self._pending_input_ids, self._pending_label_ids = [], []

        def _get_data_iter(self) -> Iterator[int]:
            return iter(costs.tolist())

        def _tokenize_sample(self, sample: int) -> tuple[list[int], list[int]]:
            return [1] * sample, [1] * sample

    return Lengths()


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
    from lancedb.streaming import StreamingDataset as Streaming

    table = _documents(costs, np.repeat(np.arange(len(costs), dtype=np.int32), costs))
    with tempfile.TemporaryDirectory() as folder:
        given = library.connect(folder).create_table("documents", table)
        rows = [row["input_ids"].numpy() for row in Streaming(given, **_packed(length))]
    rows = [row[row >= 0] for row in rows]
    return len(rows), _cut([np.unique(row) for row in rows]), sum(map(len, rows))


def _packed(length: int) -> dict[str, object]:
    return {
        "columns": ["tokens"],
        "pack_sequences": length,
        "eos_id": -1,
        "pad_id": -2,
        "blocks_per_epoch": "auto",
    }


def _documents(costs: Integers, tokens: Tokenized) -> pa.Table:
    """A table with the tokens of each document."""
    import pyarrow as pa

    return pa.table({"tokens": pa.LargeListArray.from_arrays(pa.array(np.append(0, np.cumsum(costs))), tokens)})


def axolotl(costs: Integers, length: int) -> Packed:
    """`MultipackBatchSampler` of batches of one row."""
    rows = [np.array(row) for batch in _multipack(costs, length, 1) for row in batch]
    return len(rows), _cut(rows), int(costs[np.unique(np.concatenate(rows))].sum())


def _multipack(costs: Integers, length: int, rows: int) -> list[list[list[int]]]:
    from axolotl.utils.samplers.multipack import MultipackBatchSampler
    from torch.utils.data import SequentialSampler

    documents = SequentialSampler(range(len(costs)))
    return list(MultipackBatchSampler(documents, rows, length, costs, bin_size=200, drop_last=False, num_processes=1))


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


def megatron(costs: Integers, length: int, documents: int) -> Dealt:
    """`DpBalancedScheduler`: the documents that all ranks have loaded for a step, packed, and sent to their ranks."""
    from megatron.core.datasets.data_schedule import DpBalancedScheduler

    scheduler = DpBalancedScheduler(length, 1, RANKS, None)
    steps, sent = [], 0
    for loaded in costs.reshape(-1, RANKS * documents):
        microbatches = scheduler.get_groups_and_subsamples(list(enumerate(loaded.tolist())))
        ranks = [np.concatenate([batch[rank] for batch in microbatches]) for rank in range(RANKS)]
        for rank, numbers in enumerate(ranks):
            others = loaded[numbers[numbers // documents != rank]]
            # tokens, labels and position_ids are int64, loss_mask float32; two lengths of a document int64.
            sent += 28 * int(others.sum()) + 16 * len(others)
        steps.append([loaded[numbers] for numbers in ranks])
    return steps, sent / len(steps)


def by_length(costs: Integers, length: int, documents: int) -> Dealt:
    """`LengthGroupedSampler`, whose batches go to the ranks in turn, padded to the longest document."""
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator().manual_seed(0)
    order = list(LengthGroupedSampler(documents, lengths=costs.tolist(), generator=generator))
    steps = costs[order].reshape(-1, RANKS, documents)
    return [[np.full(documents, batch.max()) for batch in step] for step in steps], 0


def rebalanced(costs: Integers, length: int, documents: int) -> Dealt:
    """`BatchRebalanceSampler`, 4 padded batches of a rank in a step, by a cost of its own, the second one here."""
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    sampler = BatchRebalanceSampler(costs.tolist(), RANKS * documents, RANKS, ROWS)
    steps = []
    for numbers in np.arange(len(costs)).reshape(-1, RANKS * documents):
        # As each rank does it, for all of them.
        ranks = sampler._assign(numbers.tolist(), costs[numbers].tolist())
        steps.append([np.concatenate([np.full(len(one), costs[one].max()) for one in rank]) for rank in ranks])
    return steps, 0


def axolotl_batches(costs: Integers, length: int, documents: int) -> Dealt:
    """`MultipackBatchSampler`, whose batches of 4 rows go to the ranks in turn."""
    batches = [costs[np.concatenate(batch)] for batch in _multipack(costs, length, ROWS)]
    return [batches[first : first + RANKS] for first in range(0, len(batches) - RANKS + 1, RANKS)], 0


DEALERS: dict[str, Callable[[Integers, int, int], Dealt]] = {
    "Megatron-LM, DpBalancedScheduler": megatron,
    "transformers, LengthGroupedSampler": by_length,
    "transformers, BatchRebalanceSampler": rebalanced,
    "axolotl, MultipackBatchSampler": axolotl_batches,
}


def balance_table(steps: int) -> Iterator[str]:
    """Cost of the dearest rank of a step by the mean of all, mean over the steps."""
    for kind, length in BALANCED:
        drawn = np.minimum(lengths(kind, 1 << 18), length)
        documents = round(ROWS * length / drawn.mean())
        costs = drawn[: steps * RANKS * documents]
        ours = np.transpose([dearest_rank(planned(costs, length), RANKS, ROWS, 17, cost) for cost in COSTS])
        for name, dearest in zip(("streamer", f"streamer, Balance(rows_per_rank={ROWS})"), ours.tolist(), strict=True):
            yield f"{kind:<9} {length:>7,} {name:<35} {_figures(dearest)} {0:>8.1f}"
        for name, rule in DEALERS.items():
            try:
                dealt, sent = rule(costs, length, documents)
            except ImportError as error:
                yield f"{kind:<9} {length:>7,} {name:<35} left out: {error}"
                continue
            dearest = [_dearest(dealt, *cost) for cost in COSTS]
            yield f"{kind:<9} {length:>7,} {name:<35} {_figures(dearest)} {sent / 1e6:>8.1f}"


def _figures(dearest: list[float]) -> str:
    return " ".join(f"{figure:>13.3f}" for figure in dearest)


def _dearest(steps: list[list[Integers]], linear: int, quadratic: int) -> float:
    cost = np.array([[int((linear * of + quadratic * of**2).sum()) for of in step] for step in steps])
    return float((cost.max(axis=1) / cost.mean(axis=1)).mean())


def resume_table(documents: int) -> Iterator[str]:
    """Tokens that come twice, and those that never come, where a run is stopped on 4 ranks and finished on 2."""
    kind, length = BALANCED[0]
    costs = np.minimum(lengths(kind, documents), length)
    tokens, stop = np.arange(int(costs.sum()), dtype=np.int32), int(costs.sum()) // (4 * length) // 3
    for name, resumed in (
        ("streamer", streamer_resumed),
        ("LanceDB, pack_sequences", lancedb_resumed),
        ("torchtitan, ChatDataset", torchtitan_resumed),
    ):
        try:
            found = np.concatenate(list(resumed(costs, tokens, length, stop)))
        except ImportError as error:
            yield f"{kind:<9} {length:>7,} {name:<24} left out: {error}"
            continue
        except AssertionError as error:
            yield f"{kind:<9} {length:>7,} {name:<24} refused: {error}"
            continue
        times = np.bincount(found, minlength=len(tokens))
        yield f"{kind:<9} {length:>7,} {name:<24} {(times > 1).sum():>10,} {(times == 0).sum():>10,}"


def streamer_resumed(costs: Integers, tokens: Tokenized, length: int, stop: int) -> Iterator[Tokenized]:
    """Rows of four a step, on 4 ranks and on 2."""
    state: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        tokens.tofile(data / "a.bin")
        (data / "a.idx").write_bytes(encode_index("<i4", costs.astype(np.int32)))
        for ranks, steps in ((4, stop), (2, None)):
            before = dict(state)
            for rank in range(ranks):
                dataset = StreamingDataset(
                    f"{data}/",
                    format=Tokens(),
                    cache_dir=f"{folder}/cache",
                    packing=Packing(length),
                    rank=rank,
                    world_size=ranks,
                )
                with StreamingDataLoader(dataset, 4 // ranks, report_every=None) as loader:
                    loader.load_state_dict(before) if before else None
                    for batch in islice(loader, steps):
                        rows, ids = (batch[name].numpy()[~loader.repeated] for name in ("tokens", "document_ids"))
                        yield rows[ids > 0]
                    state = loader.state_dict()
                dataset.close()


def torchtitan_resumed(costs: Integers, tokens: Tokenized, length: int, stop: int) -> Iterator[Tokenized]:
    """Its loader of each rank, on 4 ranks and on 2."""
    from torchtitan.components.dataloader import ParallelAwareDataloader

    states: dict[str, object] = {}
    for ranks, steps in ((4, stop), (2, None)):
        saved: dict[str, object] = {}
        for rank in range(ranks):
            loader = ParallelAwareDataloader(_chats(costs[rank::ranks], length), rank, ranks, batch_size=1)
            loader.load_state_dict(states)
            for fields, _ in islice(loader, steps):
                yield fields["input"].numpy().ravel()
            saved |= loader.state_dict()
        states = saved


def lancedb_resumed(costs: Integers, tokens: Tokenized, length: int, stop: int) -> Iterator[Tokenized]:
    """Four splits, on 4 ranks and on 2."""
    import lancedb as library
    from lancedb.streaming import StreamingDataset as Streaming

    with tempfile.TemporaryDirectory() as folder:
        table = library.connect(folder).create_table("documents", _documents(costs, tokens))
        # More than there are: tokens beyond those of an epoch are left out.
        options = {**_packed(length), "blocks_per_epoch": 4 * (len(tokens) // length // 3)}
        state: dict[str, object] | None = None
        for ranks, steps in ((4, stop), (2, None)):
            saved = []
            for rank in range(ranks):
                dataset = Streaming(table, num_splits=4, rank=rank, world_size=ranks, **options)
                if state is not None:
                    dataset.load_state_dict(state)
                for row in islice(dataset, steps and steps * 4 // ranks):
                    yield row["input_ids"].numpy()[row["input_ids"].numpy() >= 0]
                saved.append(dataset.state_dict())
            state = Streaming.merge_state_dicts(saved)


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
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    arguments = parser.parse_args()
    name = f"rows_peers-{arguments.only}" if arguments.only else "rows_peers"
    with kept(name, *_versions(), keep=not arguments.quick):
        print_tables(TABLES, arguments.only, 10 if arguments.quick else 1)


TABLES: Tables = {
    "rows": (
        "kind          row rule                          rows  padding     cut    lost us/document, CPU",
        4_000,
        row_table,
    ),
    "buckets": ("batches of speech, 400 s     padding   steps  first batch, s", 50_000, bucket_table),
    "balance": (
        "kind          row rule                                 24,576 n + n2  1,000 n + n2  MB/step",
        64,
        balance_table,
    ),
    "resume": ("kind          row rule                  tokens twice   never", 4_000, resume_table),
}


def _versions() -> Iterator[str]:
    for name in LIBRARIES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"no {name}"


if __name__ == "__main__":
    main()
