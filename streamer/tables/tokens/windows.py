"""Finds windows of tokens in a file, and cuts them out of the runs in which they are fetched.

A record of the chunk file is the tokens of a window. Where an index file says where documents begin, the places in the
window at which one does follow: int32, ascending, from 1 to the length. The manifest has those of a run in the hint of
its block: uint32, counted from the first token of the run. So nothing but tokens is fetched in an epoch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamer.errors import RecodeError
from streamer.formats.base import Block, Records
from streamer.formats.failures import make_refusal
from streamer.formats.reading import Reading
from streamer.manifest.blocks import LONGEST_HINT
from streamer.manifest.protocols import Indexing, Source
from streamer.tables.tokens import megatron

PLACE = np.dtype("<i4")
_HINTED = np.dtype("<u4")
_MAX_HINTED = LONGEST_HINT // _HINTED.itemsize


def cut_windows(
    source: Source, dtype: str, start: int, length: int, documents: megatron.MegatronHead | None
) -> Indexing:
    """Yields runs of windows, each about as long as a chunk, that begin with the last token of the one before.

    Args:
        source: the file.
        dtype: dtype of a token.
        start: byte at which the first token begins.
        length: tokens from the beginning of a window to that of the next.
        documents: head of the index file that says where documents begin; None: nothing says it.
    """
    token = np.dtype(dtype).itemsize
    tokens, rest = divmod(source.record.size - start, token)
    if rest:
        raise make_refusal(source.record, f"ends inside of a token of {token} bytes ({dtype})", source.record.size)
    count = (tokens - 1) // length
    limit = max(1, (source.chunk_bytes - token) // (length * token))
    begun = DocumentStarts(source, documents)
    first = 0
    while first < count:
        windows = min(limit, count - first)
        starts = yield from begun.find_starts(first * length, windows * length)
        if len(starts) > _MAX_HINTED:
            windows = (int(starts[_MAX_HINTED]) - 1) // length
            starts = starts[starts <= windows * length]
        if not windows:
            raise make_refusal(source.record, f"has windows of {length} tokens with more than {_MAX_HINTED} documents")
        begin = start + first * length * token
        record_bytes = windows * (length + 1) * token + len(starts) * PLACE.itemsize
        span = (begin, begin + (windows * length + 1) * token)
        yield Block((span,), windows, record_bytes, starts.astype(_HINTED).tobytes())
        first += windows


class DocumentStarts:
    """Finds where documents begin, from the first to the last; reads the index file, if there is one, in pieces."""

    def __init__(self, source: Source, head: megatron.MegatronHead | None) -> None:
        self._source = source
        self._head = head
        self._at = megatron.MegatronTables()
        self._known = np.empty(0, np.int64)

    def find_starts(self, first: int, tokens: int) -> Reading[NDArray[np.int64]]:
        """Returns where documents begin in the `tokens` behind the token `first`, counted from it.

        The places ascend. Later calls ask for later tokens.
        """
        while self._head and self._at.entries < self._head.documents and self._at.tokens <= first + tokens:
            found, self._at = yield from megatron.next_documents(self._source, self._head, self._at)
            self._known = np.concatenate([self._known, found])
        self._known = self._known[np.searchsorted(self._known, first, "right") :]
        # Documents without a token begin where the next one does.
        return np.unique(self._known[: np.searchsorted(self._known, first + tokens, "right")]) - first


class TokenWindowRecoder:
    """Copies windows out of runs of tokens; `length` is from the beginning of a window to that of the next."""

    def __init__(self, length: int, dtype: np.dtype[np.generic]) -> None:
        self._length = length
        self._dtype = dtype

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of the windows of a run, each with the places at which documents begin in it."""
        expected = (samples * self._length + 1) * self._dtype.itemsize
        if samples < 1 or len(content) != expected:
            raise RecodeError(
                f"{len(content)} bytes are not {samples} windows of {self._length} tokens, which take {expected}",
                samples=samples,
                bytes=len(content),
            )
        tokens = np.frombuffer(content, self._dtype)
        windows = np.lib.stride_tricks.sliding_window_view(tokens, self._length + 1)[:: self._length]
        made = np.ascontiguousarray(windows).view(np.uint8)
        lengths = np.full(samples, made.shape[1], np.int64)
        if not hint:
            return Records([made.reshape(-1)], lengths)
        whole_bytes = len(hint) // _HINTED.itemsize * _HINTED.itemsize
        starts = np.frombuffer(hint[:whole_bytes], _HINTED).astype(np.int64)
        if len(hint) % _HINTED.itemsize or not ascends(starts, samples * self._length):
            raise RecodeError(
                f"a hint of {len(hint)} bytes does not say where documents begin in {samples * self._length} tokens"
            )
        # The last token of a window is the first of the next one, where a document begins anyway.
        owner = (starts - 1) // self._length
        places = (starts - owner * self._length).astype(PLACE)
        ends = np.repeat((owner + 1) * made.shape[1], PLACE.itemsize)
        lengths += PLACE.itemsize * np.bincount(owner, minlength=samples)
        return Records([np.insert(made.reshape(-1), ends, places.view(np.uint8))], lengths)


def ascends(places: NDArray[np.integer], limit: int) -> bool:
    """Whether each is larger than the one before, and all are of 1 to `limit`."""
    return not len(places) or bool(places[0] >= 1 and places[-1] <= limit and (np.diff(places) > 0).all())
