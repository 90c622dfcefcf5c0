"""Computes from manifests what an epoch fetches of the right side of a join, and describes it before the training.

The loader logs it and shows it for a pack (`loader/rank/opening.py`, `loader/dataset_scan.py`), and `streamer plan`
prints it (`tools/plan_command.py`).
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.samples.joins import OpenedJoin
from streamer.batches.samples.opened import OpenedDataset
from streamer.config import FetchConfig, format_bytes
from streamer.manifest.model import MOST_GAP_BYTES
from streamer.manifest.table import Manifest

Integers = npt.NDArray[np.int64]

# The advice is given for more requests than this for each chunk of the left side: the two sides have unlike orders.
# Rows that are recoded do not count, since they need a request for each column.
_USUAL_RUNS = 4.0
# If an epoch fetches more than this many times the bytes that it would fetch with a large cache, the advice is given.
_USUAL_BYTES = 1.5


class JoinCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one epoch needs of the right side of a join, in bytes and requests. The cache is empty when it begins.

    Attributes:
        row_bytes: bytes of the rows that samples need. A row counts as the mean of its chunk.
        fetched_bytes: bytes that are fetched if each chunk is kept until its last use.
        requests: number of requests for `fetched_bytes`.
        most_bytes: bytes that are fetched if no chunk is kept from one use to the next.
        most_requests: number of requests for `most_bytes`.
        local_bytes: bytes in the cache of all chunks that are used.
        uses: mean number of uses of a chunk of the right side that is used at all.
        runs: mean number of requests for a chunk of the left side, where no chunk is kept.
    """

    row_bytes: int
    fetched_bytes: int
    requests: int
    most_bytes: int
    most_requests: int
    local_bytes: int
    uses: float
    runs: float

    def estimate(self, kept_share: float) -> tuple[int, int]:
        """Returns fetched bytes and requests if a share (0 to 1) of the right side is kept, and the rest is not."""
        passing = 1.0 - kept_share
        return (
            int(self.fetched_bytes + passing * (self.most_bytes - self.fetched_bytes)),
            int(self.requests + passing * (self.most_requests - self.requests)),
        )


def join_cost(join: OpenedJoin, left: OpenedDataset) -> JoinCost:
    """Counts what an epoch of the selected samples of the left side needs of the right side."""
    table = join.table
    part = join.manifest
    chunks = np.flatnonzero(left.chunk_samples)
    uses = np.bincount(table.uses_of(chunks)[1], minlength=part.chunks)
    (fetch, requests) = _fetches(part)
    used = uses > 0
    wanted = table.rows if left.selection is None else table.rows_of(left.selection.ordinals)[1]
    rows = part.find_chunks(np.unique(wanted))
    needed = np.bincount(rows, minlength=part.chunks)
    return JoinCost(
        row_bytes=int((part.column("chunks", "fetch_bytes").astype(np.int64) * needed / part.chunk_samples).sum()),
        fetched_bytes=int(fetch[used].sum()),
        requests=int(requests[used].sum()),
        most_bytes=int((fetch * uses).sum()),
        most_requests=int((requests * uses).sum()),
        local_bytes=int(part.chunk_local_bytes[used].sum()),
        uses=float(uses[used].mean()) if used.any() else 0.0,
        runs=float((requests * uses).sum() / max(1, len(chunks))),
    )


def describe_join(join: OpenedJoin, left: OpenedDataset, cache_bytes: int) -> str:
    """Returns a line on what an epoch fetches with a cache of `cache_bytes`, and if useful a line of advice."""
    cost = join_cost(join, left)
    found = join.table.found
    having = found if left.selection is None else found[left.selection.ordinals]
    # Bytes that are kept of the right side save more than those of the left one, which come after them.
    kept = min(1.0, cache_bytes / max(1, cost.local_bytes))
    fetched_bytes, requests = cost.estimate(kept)
    text = (
        f"join     {join.recipe.name}: {np.count_nonzero(having):,} of {left.samples:,} samples have rows; "
        f"an epoch fetches {format_bytes(fetched_bytes)} in {requests:,} requests for them, "
        f"{fetched_bytes / max(1, cost.row_bytes):.2f} times the bytes of the rows"
    )
    passing = fetched_bytes > _USUAL_BYTES * cost.fetched_bytes
    if passing:
        text += (
            f", as each chunk is used {cost.uses:.1f} times and the cache has room for {kept:.0%} of them: with room "
            f"for {format_bytes(cost.local_bytes)} it would be {format_bytes(cost.fetched_bytes)}"
        )
    if passing or (cost.runs > _USUAL_RUNS and not join.manifest.recoded):
        text += (
            "\nadvice   the orders or the chunks of the two sides are unlike; streamer pack --join writes them "
            "side by side (docs/joins.md)"
        )
    return text


def _fetches(part: Manifest) -> tuple[Integers, Integers]:
    """Returns for each chunk the bytes and the number of requests of one fetch: two arrays, (chunks,).

    Small gaps between the extents of a chunk are fetched with them.
    """
    if part.whole_objects:
        sizes = part.column("objects", "size").astype(np.int64)
        first = part.chunk_first[:-1]
        return np.add.reduceat(sizes, first), np.add.reduceat(_pieces(sizes), first)
    number, start, stop = (part.column("extents", name).astype(np.int64) for name in ("object", "start", "stop"))
    first = part.column("chunks", "first_extent").astype(np.int64)
    # Extents that are close together are fetched by one request.
    gaps = start[1:] - stop[:-1]
    begins = np.append(True, (number[1:] != number[:-1]) | (gaps < 0) | (gaps > MOST_GAP_BYTES))
    begins[first] = True
    at = np.flatnonzero(begins)
    lengths = stop[np.append(at[1:], len(stop)) - 1] - start[at]
    of_chunk = np.searchsorted(at, first)
    return np.add.reduceat(lengths, of_chunk), np.add.reduceat(_pieces(lengths), of_chunk)


def _pieces(lengths: Integers) -> Integers:
    """Returns the number of requests for each of these lengths in bytes."""
    return np.where(lengths > 0, np.maximum(1, lengths // FetchConfig().range_bytes), 0)
