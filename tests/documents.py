"""Documents of tokens for the tests of rows: their lengths, their files, and what becomes of them, written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamer.order.rows.content import RowContent
from streamer.order.rows.sets import Sets
from streamer.order.rows.spec import RowSpec
from streamer.tables.tokens.megatron import encode_index

Array = npt.NDArray[np.int64]


def lengths(count: int, row: int, seed: int = 0) -> Array:
    """Draws lengths: mostly short documents, some longer than a row, some without a token."""
    random = np.random.default_rng(seed)
    found = random.lognormal(np.log(row / 6), 1.0, count).astype(np.int64)
    found[random.random(count) < 0.03] = 0
    found[random.random(count) < 0.03] *= 6
    return np.minimum(found, 20 * row)


def documents(counts: Array, seed: int = 1) -> list[npt.NDArray[np.uint16]]:
    """Draws tokens of documents of these lengths: no two documents of four tokens or more are equal."""
    random = np.random.default_rng(seed)
    return [random.integers(0, 1 << 16, count, dtype=np.uint16) for count in counts.tolist()]


def write_megatron(folder: Path, given: list[npt.NDArray[np.uint16]], files: int = 2) -> Path:
    """Writes files as Megatron-LM does, a document each sequence; the index is by streamer's own encoder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(given)), files)):
        own = [given[index] for index in part]
        (folder / f"{number}.bin").write_bytes(b"".join(one.tobytes() for one in own))
        sizes = np.array([len(one) for one in own], np.int32)
        (folder / f"{number}.idx").write_bytes(encode_index("<u2", sizes))
    return folder


def pieces_of(given: Iterable[npt.NDArray[np.generic]], row: int) -> Counter[bytes]:
    """Counts what rows hold of documents that are split: each document cut at multiples of a row."""
    return Counter(one[first : first + row].tobytes() for one in given for first in range(0, len(one), row))


def pieces_in(rows: Iterable[Mapping[str, npt.NDArray[np.generic]]]) -> Counter[bytes]:
    """Counts the documents in rows, or in batches of them, told apart by `document_ids`."""
    found: Counter[bytes] = Counter()
    for row in rows:
        all_tokens, all_numbers = (np.atleast_2d(np.asarray(row[name])) for name in ("tokens", "document_ids"))
        for tokens, numbers in zip(all_tokens, all_numbers, strict=True):
            found.update(tokens[numbers == number].tobytes() for number in range(1, int(numbers.max()) + 1))
    return found


def covered(spec: RowSpec, sets: Sets, costs: Array, chunk_first: Array, seed: int | None, epoch: int) -> Counter:
    """Counts every (document, token) of an epoch's rows, and the rows of each set under the key "rows"."""
    content, found = RowContent(spec, seed), Counter()
    for number in range(len(sets)):
        members = np.concatenate([np.arange(*chunk_first[[c, c + 1]]) for c in sets.chunks(number).astype(int)])
        rows = content.rows(costs[members], members, epoch)
        found["rows", number] = len(rows)
        items = rows.items
        taken = -(-items.size // spec.multiple_of) * spec.multiple_of
        assert all(part.sum() <= spec.length for part in np.split(taken, rows.first[1:-1])), "no row is too long"
        assert (items.size > 0).all()
        for document, begin, size in zip(members[items.document], items.begin, items.size, strict=True):
            found.update((int(document), token) for token in range(int(begin), int(begin + size)))
    return found
