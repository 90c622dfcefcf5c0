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
from streamer.formats.sidecars import read_sidecar

_MAGIC = b"MMIDIDX\0\0"
_HEAD = Struct("<9sQBQQ")
HEAD_BYTES = _HEAD.size
# By their numbers.
_DTYPES = ("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2")
_LENGTH, _POINTER = np.dtype("<i4"), np.dtype("<i8")


class Head(msgspec.Struct, frozen=True):
    """The beginning of an index file: the dtype of the tokens, and how many sequences there are."""

    dtype: str
    sequences: int


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
    return Head(_DTYPES[code - 1], sequences)


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
