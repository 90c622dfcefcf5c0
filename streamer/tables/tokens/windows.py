"""Finds windows of tokens in a file, and cuts them out of the runs of windows that are fetched.

`tables/tokens/format.py` uses it, in the index (`cut_windows`) and in the recoder (`TokenWindowRecoder`). A record is
the tokens of a window. With `Tokens(documents=True)` the places in the window at which documents begin follow: int32,
ascending, from 1 to the length of a window. The index has them from the index file, and puts those of a run into the
hint of its block: uint32, counted from the first token of the run. Therefore an epoch fetches tokens only.
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
    """Yields the windows of a file as blocks: runs of windows, each at most as long as a chunk, or of one window.

    Args:
        source: the file.
        dtype: dtype of a token.
        start: byte at which the first token begins.
        length: tokens from the beginning of a window to that of the next one. A window has one more.
        documents: head of the index file, if hints must say where documents begin; else None.

    Raises:
        ManifestError: the file ends inside of a token, a window has too many documents, or the index file is wrong.
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
    """Finds where documents begin, forward through a file, by reading the index file in pieces.

    Args:
        source: the file and its index file.
        head: head of the index file; with None no document is found.
    """

    def __init__(self, source: Source, head: megatron.MegatronHead | None) -> None:
        self._source = source
        self._head = head
        self._at = megatron.MegatronTables()
        self._known = np.empty(0, np.int64)

    def find_starts(self, first: int, tokens: int) -> Reading[NDArray[np.int64]]:
        """Returns the places at which documents begin among the `tokens` tokens behind token `first`.

        The places are counted from token `first`, and ascend from 1 on. `first` must not be
        less than in the call before. Raises ManifestError if the index file is wrong.
        """
        while self._head and self._at.entries < self._head.documents and self._at.tokens <= first + tokens:
            found, self._at = yield from megatron.next_documents(self._source, self._head, self._at)
            self._known = np.concatenate([self._known, found])
        self._known = self._known[np.searchsorted(self._known, first, "right") :]
        # A document without tokens begins where the next one does, and is not told apart from it.
        return np.unique(self._known[: np.searchsorted(self._known, first + tokens, "right")]) - first


class TokenWindowRecoder:
    """Makes records of windows by copying them out of runs of tokens, as a `Recoder`.

    Args:
        length: tokens from the beginning of a window to that of the next one; a window has one more.
        dtype: dtype of a token.
    """

    def __init__(self, length: int, dtype: np.dtype[np.generic]) -> None:
        self._length = length
        self._dtype = dtype

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of the windows of a run, with the places at which documents begin if there is a hint.

        Raises:
            RecodeError: content or hint are not those of so many windows.
        """
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
    """Whether each place is larger than the one before, and all are in 1 to `limit`; true without places."""
    return not len(places) or bool(places[0] >= 1 and places[-1] <= limit and (np.diff(places) > 0).all())
