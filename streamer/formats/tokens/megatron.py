"""Megatron's index files: `x.idx` beside `x.bin`, whose sequences follow each other without a gap.

    "MMIDIDX", 2 zeros | u64 version 1 | u8 dtype | u64 sequences | u64 documents
    i32 tokens of each sequence | i64 byte at which each begins | i64 first sequence of each document | (i8 modes)

Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.base import Answer, Need, ObjectRecord, Source
from streamer.formats.failures import contradicts
from streamer.formats.sidecars import read_sidecar, single

_MAGIC = b"MMIDIDX\0\0"
_HEAD = Struct("<9sQBQQ")
HEAD_BYTES = _HEAD.size
# By their numbers.
_DTYPES = ("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2")
_LENGTH, _POINTER = np.dtype("<i4"), np.dtype("<i8")


# Entries of the table of documents that are read at once: 2 MiB, and about half as much of the lengths.
_PIECE = 1 << 18


class Head(msgspec.Struct, frozen=True):
    """The beginning of an index file.

    Attributes:
        dtype: of the tokens.
        sequences: how many.
        documents: entries of their table, which has the end of the last one, too.
    """

    dtype: str
    sequences: int
    documents: int


class Tables(msgspec.Struct, frozen=True):
    """How far the tables have been read: entries of that of documents, the sequences of these, and their tokens."""

    entries: int = 0
    sequences: int = 0
    tokens: int = 0


def read_head(content: memoryview, index: ObjectRecord, tokens: ObjectRecord) -> Head:
    """Parses the first bytes of an index file.

    Args:
        content: `HEAD_BYTES`, or the whole file if that is shorter.
        index: the index file.
        tokens: the file beside it.

    Raises:
        ManifestError: not such a file, or it is too short for its sequences.
    """
    if len(content) < HEAD_BYTES:
        raise contradicts(index, tokens, f"its head has {len(content)} of {HEAD_BYTES} bytes")
    magic, version, code, sequences, documents = _HEAD.unpack(content)
    if magic != _MAGIC or version != 1:
        raise contradicts(
            index, tokens, f"it begins with {bytes(content[:9])!r} and version {version}, not {_MAGIC!r}, 1"
        )
    if not 1 <= code <= len(_DTYPES):
        raise contradicts(index, tokens, f"it has tokens of dtype number {code}; there are 1 to {len(_DTYPES)}")
    least = HEAD_BYTES + (_LENGTH.itemsize + _POINTER.itemsize) * sequences + _POINTER.itemsize * documents
    if index.size not in {least, least + sequences}:
        raise contradicts(
            index, tokens, f"{sequences} sequences and {documents} documents take {least} bytes, it has {index.size}"
        )
    return Head(_DTYPES[code - 1], sequences, documents)


def check_end(source: Source, head: Head) -> Generator[tuple[Need, ...], Answer, None]:
    """Reads the last sequence alone: it must end where the tokens end.

    Raises:
        ManifestError: an index of another file.
    """
    assert source.sidecar is not None
    if not head.sequences:
        raise contradicts(source.sidecar, source.record, "it has no sequences")
    lengths_end = HEAD_BYTES + _LENGTH.itemsize * head.sequences
    pointers_end = lengths_end + _POINTER.itemsize * head.sequences
    contents = yield (
        Need(lengths_end - _LENGTH.itemsize, lengths_end, source.sidecar),
        Need(pointers_end - _POINTER.itemsize, pointers_end, source.sidecar),
    )
    assert isinstance(contents, tuple)
    length, pointer = (int.from_bytes(content, "little", signed=True) for content in contents)
    end = pointer + length * np.dtype(head.dtype).itemsize
    if end != source.record.size or length < 0:
        raise contradicts(source.sidecar, source.record, f"its last sequence ends at byte {end}")


def next_documents(source: Source, head: Head, at: Tables) -> Generator[Need, Answer, tuple[NDArray[np.int64], Tables]]:
    """Where the next documents begin: the numbers of their first tokens, int64; and how far the tables are read then.

    The last entry is where the last document ends.

    Raises:
        ManifestError: documents or sequences that do not follow each other, or do not end where the tokens end.
    """
    assert source.sidecar is not None
    stop = min(at.entries + _PIECE, head.documents)
    table = HEAD_BYTES + (_LENGTH.itemsize + _POINTER.itemsize) * head.sequences
    begin, end = (table + _POINTER.itemsize * entry for entry in (at.entries, stop))
    firsts = np.frombuffer(single((yield Need(begin, end, source.sidecar))), _POINTER)
    last = head.sequences if stop == head.documents else int(firsts[-1])
    if firsts[0] < at.sequences or firsts[-1] != last or last > head.sequences or (np.diff(firsts) < 0).any():
        raise contradicts(source.sidecar, source.record, "its documents do not follow each other")
    lengths = np.empty(0, _LENGTH)
    if last > at.sequences:
        begin, end = (HEAD_BYTES + _LENGTH.itemsize * sequence for sequence in (at.sequences, last))
        lengths = np.frombuffer(single((yield Need(begin, end, source.sidecar))), _LENGTH)
    edges = at.tokens + np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if (lengths < 0).any():
        raise contradicts(source.sidecar, source.record, "its sequences do not follow each other")
    end = int(edges[-1]) * np.dtype(head.dtype).itemsize
    if stop == head.documents and end != source.record.size:
        raise contradicts(source.sidecar, source.record, f"its last sequence ends at byte {end}")
    return edges[firsts - at.sequences], Tables(stop, last, int(edges[-1]))


def sequence_edges(source: Source, head: Head) -> Generator[Need, Answer, list[int]]:
    """Where the sequences begin, and the end: bytes.

    Raises:
        ManifestError: sequences that do not follow each other, or do not end where the tokens end.
    """
    assert source.sidecar is not None
    content = yield from read_sidecar(source)
    lengths = np.frombuffer(content, _LENGTH, head.sequences, HEAD_BYTES).astype(np.int64)
    pointers = np.frombuffer(content, _POINTER, head.sequences, HEAD_BYTES + _LENGTH.itemsize * head.sequences)
    edges = np.concatenate([[0], np.cumsum(lengths * np.dtype(head.dtype).itemsize)])
    if (lengths < 0).any() or (edges[:-1] != pointers).any():
        raise contradicts(source.sidecar, source.record, "its sequences do not follow each other")
    if edges[-1] != source.record.size:
        raise contradicts(source.sidecar, source.record, f"its last sequence ends at byte {edges[-1]}")
    found: list[int] = edges.tolist()
    return found


def encode_index(dtype: str, lengths: NDArray[np.int32]) -> bytes:
    """The index file of documents with one sequence each, as Megatron's own writer makes it.

    Args:
        dtype: of a token, as `Head` has it.
        lengths: tokens of each document: int32, shape (n,).
    """
    sizes = lengths.astype(_POINTER) * np.dtype(dtype).itemsize
    head = _HEAD.pack(_MAGIC, 1, _DTYPES.index(dtype) + 1, len(lengths), len(lengths) + 1)
    documents = np.arange(len(lengths) + 1, dtype=_POINTER)
    return b"".join(
        [head, lengths.astype(_LENGTH).tobytes(), (np.cumsum(sizes) - sizes).tobytes(), documents.tobytes()]
    )
