"""Reads and writes Megatron's index files: `x.idx` beside `x.bin`, whose sequences have no gaps between them.

`tables/tokens/format.py` and `windows.py` read them, and `shards/outputs/tokens.py` writes one (`encode_index`).

    "MMIDIDX", 2 zeros | u64 version 1 | u8 dtype | u64 sequences | u64 documents
    i32 tokens of each sequence | i64 byte at which each begins | i64 first sequence of each document | (i8 modes)

An index file that contradicts itself, or the file of tokens beside it, raises `ManifestError`.
Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

from struct import Struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.reading import Range, Reading, read_range, read_ranges
from streamer.formats.sidecars import contradicts, read_sidecar
from streamer.manifest.protocols import Need, Source

_MAGIC = b"MMIDIDX\0\0"
_HEAD = Struct("<9sQBQQ")
HEAD_BYTES = _HEAD.size
# Dtypes by their numbers, which begin with 1.
_DTYPES = ("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2")
_LENGTH = np.dtype("<i4")
_POINTER = np.dtype("<i8")
# Entries of the table of documents that are read at a time.
_PIECE = 1 << 18


class MegatronHead(msgspec.Struct, frozen=True):
    """The head of an index file.

    Attributes:
        dtype: dtype of a token.
        sequences: number of sequences.
        documents: entries of the table of documents, which is one more than there are documents; 0 without a table.
    """

    dtype: str
    sequences: int
    documents: int


class MegatronTables(msgspec.Struct, frozen=True):
    """How far the tables of an index file have been read.

    Attributes:
        entries: entries of the table of documents that were read.
        sequences: sequences before the document of the last entry.
        tokens: tokens of these sequences.
    """

    entries: int = 0
    sequences: int = 0
    tokens: int = 0


def read_head(content: memoryview, source: Source) -> MegatronHead:
    """Parses the first `HEAD_BYTES` of the index file of a source; raises ManifestError."""
    if len(content) < HEAD_BYTES:
        raise contradicts(source, f"its head has {len(content)} of {HEAD_BYTES} bytes")
    magic, version, code, sequences, documents = _HEAD.unpack(content)
    if magic != _MAGIC or version != 1:
        raise contradicts(source, f"it begins with {magic!r} and version {version}, not {_MAGIC!r}, 1")
    if not 1 <= code <= len(_DTYPES):
        raise contradicts(source, f"it has tokens of dtype number {code}; there are 1 to {len(_DTYPES)}")
    least = HEAD_BYTES + (_LENGTH.itemsize + _POINTER.itemsize) * sequences + _POINTER.itemsize * documents
    assert source.sidecar is not None
    size = source.sidecar.size
    if size not in {least, least + sequences}:
        raise contradicts(source, f"{sequences} sequences and {documents} documents take {least} bytes, it has {size}")
    return MegatronHead(_DTYPES[code - 1], sequences, documents)


def _entries(table: int, dtype: np.dtype[np.generic], first: int, stop: int) -> Range:
    """Returns the byte range of the entries `[first, stop)` of a table that begins at byte `table`."""
    return table + dtype.itemsize * first, table + dtype.itemsize * stop


def check_end(source: Source, head: MegatronHead) -> Reading[None]:
    """Reads the entry of the last sequence; raises ManifestError if it does not end where the file of tokens ends."""
    if not head.sequences:
        raise contradicts(source, "it has no sequences")
    last = head.sequences - 1
    pointers = HEAD_BYTES + _LENGTH.itemsize * head.sequences
    places = [_entries(HEAD_BYTES, _LENGTH, last, last + 1), _entries(pointers, _POINTER, last, last + 1)]
    contents = yield from read_ranges([Need(*place, source.sidecar) for place in places])
    length, pointer = (int.from_bytes(content, "little", signed=True) for content in contents)
    end = pointer + length * np.dtype(head.dtype).itemsize
    if end != source.record.size or length < 0:
        raise contradicts(source, f"its last sequence ends at byte {end}")


def next_documents(
    source: Source, head: MegatronHead, at: MegatronTables
) -> Reading[tuple[NDArray[np.int64], MegatronTables]]:
    """Reads the next piece of the table of documents, and the lengths of the sequences before them.

    Args:
        source: the file and its index file.
        head: head of the index file.
        at: how far the tables have been read.

    Returns:
        The number of the first token of each next document, int64, ascending; and how far the tables are read then.
        The last entry of the whole table gives the end of the last document.

    Raises:
        ManifestError: the index file contradicts itself or the tokens.
    """
    stop = min(at.entries + _PIECE, head.documents)
    table = HEAD_BYTES + (_LENGTH.itemsize + _POINTER.itemsize) * head.sequences
    content = yield from read_range(*_entries(table, _POINTER, at.entries, stop), source.sidecar)
    firsts = np.frombuffer(content, _POINTER)
    last = head.sequences if stop == head.documents else int(firsts[-1])
    if firsts[0] < at.sequences or firsts[-1] != last or last > head.sequences or (np.diff(firsts) < 0).any():
        raise contradicts(source, "its documents do not follow each other")
    content = yield from read_range(*_entries(HEAD_BYTES, _LENGTH, at.sequences, last), source.sidecar)
    lengths = np.frombuffer(content, _LENGTH)
    edges = at.tokens + np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if (lengths < 0).any():
        raise contradicts(source, "its sequences do not follow each other")
    end = int(edges[-1]) * np.dtype(head.dtype).itemsize
    if stop == head.documents and end != source.record.size:
        raise contradicts(source, f"its last sequence ends at byte {end}")
    return edges[firsts - at.sequences], MegatronTables(stop, last, int(edges[-1]))


def sequence_edges(source: Source, head: MegatronHead) -> Reading[list[int]]:
    """Reads the whole index file; returns the bytes at which sequences begin, and the one at which the last one ends.

    Raises:
        ManifestError: the index file contradicts itself or the tokens.
    """
    content = yield from read_sidecar(source)
    lengths = np.frombuffer(content, _LENGTH, head.sequences, HEAD_BYTES).astype(np.int64)
    pointers = np.frombuffer(content, _POINTER, head.sequences, HEAD_BYTES + _LENGTH.itemsize * head.sequences)
    edges = np.concatenate([[0], np.cumsum(lengths * np.dtype(head.dtype).itemsize)])
    if (lengths < 0).any() or (edges[:-1] != pointers).any():
        raise contradicts(source, "its sequences do not follow each other")
    if edges[-1] != source.record.size:
        raise contradicts(source, f"its last sequence ends at byte {edges[-1]}")
    found: list[int] = edges.tolist()
    return found


def encode_index(dtype: str, lengths: NDArray[np.int32]) -> bytes:
    """Returns the content of the index file for documents of one sequence each, as Megatron's own writer makes it.

    Args:
        dtype: dtype of a token, one of `_DTYPES`; another raises ValueError.
        lengths: number of tokens of each document: int32, shape (n,).
    """
    sizes = lengths.astype(_POINTER) * np.dtype(dtype).itemsize
    head = _HEAD.pack(_MAGIC, 1, _DTYPES.index(dtype) + 1, len(lengths), len(lengths) + 1)
    documents = np.arange(len(lengths) + 1, dtype=_POINTER)
    return b"".join(
        [head, lengths.astype(_LENGTH).tobytes(), (np.cumsum(sizes) - sizes).tobytes(), documents.tobytes()]
    )
