"""Makes and reads the table of rows: how many rows each set of chunks has, in a file that is kept beside the manifest.

`batches/samples/opened.py` finds or makes it when rows are planned, and `batches/rows/planned.py` reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.base.cgroup import usable_cores
from streamer.config import counted
from streamer.errors import ConfigError, ManifestCorruptError, ManifestError
from streamer.manifest.arrow_ipc.reader import map_table
from streamer.manifest.kept import KeptFiles, hash_question
from streamer.order.rows.content import row_counts
from streamer.order.rows.items import limit_costs
from streamer.order.rows.sets import Sets, chunks_per_set, make_sets
from streamer.order.rows.spec import RowSpec

logger = logging.getLogger(__name__)

Integers = npt.NDArray[np.int64]
# Function from the numbers of documents to their tokens.
CostsOf = Callable[[Integers], Integers]
Task = TypeVar("Task")

# Columns of the file, with a row for each set: see `RowTable`; `chunks` is the number of its chunks.
_SCHEMA = {"rows": "int64", "chunks": "int64", "tokens": "int64", "left_out": "int64"}
# Costs that are summed at once: 8 MB.
_BLOCK = 1 << 20
# The largest number of tokens of a document: 4 GB of 2 bytes each. A file with larger numbers has something else.
_MOST_TOKENS = (1 << 31) - 1
# Least number of documents for which making the table is logged and uses a process for each core.
_MANY = 5_000_000
# Time for one document with best fit on one core (benchmarks/rows.py, 2026-11-26).
_DOCUMENT_SECONDS = 0.5e-6
# Number of runs into which chunks, or sets, are cut: the tasks of the processes.
_RUNS = 64


class Documents(msgspec.Struct, frozen=True, eq=False):
    """The selected documents of a dataset, numbered through in the order of its M chunks.

    Attributes:
        manifest_digest: digest of the manifest.
        digest: identity of the selected documents.
        chunk_samples: (M,) number of selected documents of each chunk.
        chunk_first: (M+1,) number of the first document of each chunk, and the number of all.
        costs: function from numbers of documents to their tokens.
        shuffle: whether rows are shuffled.
        reopen: function that opens the same documents in another process, or None if only this process has them.
    """

    manifest_digest: str
    digest: str
    chunk_samples: Integers
    chunk_first: Integers
    costs: CostsOf
    shuffle: bool
    reopen: Callable[[], Documents] | None = None

    def list_documents(self, chunks: npt.NDArray[np.uint32]) -> Integers:
        """Returns the numbers of the documents of some chunks, chunk after chunk: (D,)."""
        firsts = self.chunk_first[chunks]
        counts = self.chunk_samples[chunks]
        before = np.cumsum(counts) - counts
        numbers: Integers = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(firsts - before, counts)
        return numbers


class RowTable(msgspec.Struct, frozen=True, eq=False):
    """The S sets of a dataset, and how many rows each of them has.

    Attributes:
        sets: the chunks of each set.
        counts: (S,) number of rows of each set, in every epoch.
        tokens: (S,) number of tokens in the rows of each set.
        left_out: (S,) number of tokens of each set's documents that are in no row, by `overflow`.
    """

    sets: Sets
    counts: Integers
    tokens: Integers
    left_out: Integers

    @classmethod
    def make(cls, spec: RowSpec, documents: Documents) -> RowTable:
        """Makes the table by packing every set once: 0.5 us for each document with best fit on one core (2026-11-24).

        For many documents it starts a process for each core.

        Raises:
            ManifestError: no document has a token.
            ConfigError: a document is longer than a row, and overflow="error". Or all of them are, and overflow="drop".
                Or the file of costs has a number that no document can have.
        """
        with _start_runner(documents) as run:
            of_chunks = np.hstack(run(partial(_sum_tokens, spec), _cut(len(documents.chunk_samples))))
            if (tokens := int(of_chunks[0].sum())) == 0:
                number = int(documents.chunk_first[-1])
                if not int(of_chunks[1].sum()):
                    raise ManifestError(f"none of the {number} documents has a token for a row of {spec.length}")
                longer = 'a larger length, or overflow="split" or "truncate"'
                raise ConfigError(
                    f'overflow="drop" leaves out all of the {number} documents: those that have a token are longer '
                    f"than {spec.room}; give {'a larger budget' if spec.policy == 'buckets' else longer}",
                    field="overflow",
                )
            per_set = chunks_per_set(documents.chunk_samples, tokens, spec.length, spec.set_rows)
            sets = make_sets(documents.chunk_samples, per_set, shuffle=documents.shuffle)
            counts = np.concatenate(run(partial(_counts, spec), [sets.part(*ends) for ends in _cut(len(sets))]))
        kept, given = (np.add.reduceat(of_each[sets.all_chunks], sets.first[:-1]) for of_each in of_chunks)
        return cls(sets, counts, kept, given - kept)

    @classmethod
    def open(cls, path: Path, documents: Documents) -> RowTable:
        """Maps the file of a table that `write` has written.

        Raises:
            ManifestCorruptError: the file is damaged, or is not the table of these documents.
        """
        columns = map_table(path, _SCHEMA)  # type: ignore[arg-type]
        counts, chunks, tokens, left_out = (np.asarray(columns[name]).view(np.int64) for name in _SCHEMA)
        sets = make_sets(documents.chunk_samples, int(chunks[0]) if len(chunks) else 1, shuffle=documents.shuffle)
        if not np.array_equal(np.diff(sets.first), chunks):
            raise ManifestCorruptError(f"{path}: not the sets of these documents", path=str(path))
        return cls(sets, counts, tokens, left_out)

    def write(self, path: Path) -> None:
        """Writes the table as a file, in Arrow's IPC format; raises an OSError if it cannot be written."""
        # Imported here, since processes that read a table do not need nanoarrow (6 ms of a start, 2026-11-22).
        from streamer.manifest.arrow_ipc.writer import write_table

        columns = self.counts, np.diff(self.sets.first), self.tokens, self.left_out
        write_table(path, dict(zip(_SCHEMA, columns, strict=True)))


def _cut(count: int) -> list[tuple[int, int]]:
    """Cuts 0..count-1 into at most `_RUNS` half-open runs of about equal length."""
    ends = np.linspace(0, count, min(count, _RUNS) + 1).astype(np.int64).tolist()
    return list(pairwise(ends))


@contextmanager
def _start_runner(
    documents: Documents,
) -> Iterator[Callable[[Callable[[Documents, Task], Integers], Sequence[Task]], list[Integers]]]:
    """Yields a function that runs work on tasks and returns the results in order; ends its processes afterwards.

    It runs in this process, or for `_MANY` documents and more in one process for each core.
    """
    cores = usable_cores()
    if documents.reopen is None or int(documents.chunk_first[-1]) < _MANY or cores == 1:
        yield lambda work, tasks: [work(documents, task) for task in tasks]
        return
    # Imported here, since a small dataset starts no processes.
    from streamer.executors.processes import Processes

    pool = Processes(cores)
    reopen = documents.reopen
    try:
        yield lambda work, tasks: list(pool.map(partial(_reopen_and_run, reopen, work), tasks))
    finally:
        pool.shutdown(cancel_futures=True)


def _reopen_and_run(
    reopen: Callable[[], Documents], work: Callable[[Documents, Task], Integers], task: Task
) -> Integers:
    return work(reopen(), task)


def _counts(spec: RowSpec, documents: Documents, sets: Sets) -> Integers:
    """Returns the number of rows of each of some sets: (S,)."""
    return row_counts(spec, sets, lambda number: documents.costs(documents.list_documents(sets.chunks(number))))


def _sum_tokens(spec: RowSpec, documents: Documents, chunks: tuple[int, int]) -> Integers:
    """Returns the tokens of each of the M chunks of a run, (2, M): those that go to rows, and all.

    Raises:
        ConfigError: a document is longer than a row, and overflow="error". Or a number is too large for a document.
    """
    ends = documents.chunk_first[chunks[0] : chunks[1] + 1]
    before = np.zeros((2, len(ends)), np.int64)
    total = np.zeros((2, 1), np.int64)
    for first in range(int(ends[0]), int(ends[-1]), _BLOCK):
        numbers = np.arange(first, min(first + _BLOCK, int(ends[-1])))
        costs = documents.costs(numbers)
        # No document has more tokens than `_MOST_TOKENS`, and the rows of such a number would take all memory.
        if spec.costs and (largest := int(costs.max())) > _MOST_TOKENS:
            raise ConfigError(
                f"cost: sample {first + int(costs.argmax())} has {largest} tokens, at most {_MOST_TOKENS} are "
                "possible; correct its number, or measure again",
                field="cost",
            )
        sums = total + np.cumsum([limit_costs(costs, spec), np.maximum(costs, 0)], axis=1)
        here = slice(*np.searchsorted(ends, [first, first + len(numbers)], side="right"))
        before[:, here] = sums[:, ends[here] - first - 1]
        total = sums[:, -1:]
    return np.diff(before)


def find_table(kept: KeptFiles, spec: RowSpec, documents: Documents) -> tuple[Path, RowTable]:
    """Returns the file of the table, and the table. The first process of a machine makes the file, the others wait.

    Args:
        kept: folder of such files.
        spec: what fixes the rows.
        documents: the documents.

    Raises:
        ManifestError: no document has a token, or the file cannot be written.
        ConfigError: errors of `RowTable.make`.
        OSError: a lock file cannot be written.
    """

    def open_table(path: Path) -> tuple[Path, RowTable]:
        return path, RowTable.open(path, documents)

    def make_table(path: Path) -> None:
        count = int(documents.chunk_first[-1])
        if count >= _MANY:
            logger.warning(
                "making the table of rows of %d documents once, about %.0f s on %s",
                count,
                count * _DOCUMENT_SECONDS / usable_cores(),
                counted(usable_cores(), "cores"),
            )
        RowTable.make(spec, documents).write(path)

    # The name has all that decides the rows.
    question = hash_question(msgspec.json.encode([documents.digest, documents.shuffle, spec]))
    return kept.open_or_make(f"{documents.manifest_digest}.{question}.rows.arrows", open_table, make_table)
