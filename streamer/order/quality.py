"""Predicts the quality and the cost of an order before a byte is read, and describes them in words."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from streamer.config import counted, format_bytes
from streamer.errors import ConfigError
from streamer.order.hashing import Integers
from streamer.order.rank_split import RankSplit
from streamer.order.spec import OrderSpec

# A request per sample costs more time and money than it can be worth below this mean size.
SAMPLE_SHUFFLE_FLOOR_BYTES = 256 * 1024
# A variance of 2 x is that of a batch half as large: below it little can be gained.
WELL_MIXED = 2.0
# S3 standard, us-east-1, 2025: 0.0004 USD per 1,000 GET requests.
GET_PRICE_USD = 0.4e-6
# The size of the chunk that a request fetches in block order.
_BLOCK_REQUEST_BYTES = 8 * 1024 * 1024


def vif_bound(spec: OrderSpec, chunk_samples: Integers, global_batch: int, *, correlation: float = 1.0) -> float:
    """Returns a bound of the variance of a batch's mean, as a multiple of that of a full shuffle.

    1 + rho (B/L - 1) (1/k - L/M), while B is at most half of the open samples: a batch takes B/L
    samples of each lane, from k of its M/L chunks. Never above 1 + rho (s - 1), what whole chunks
    of s samples would give.

    Args:
        spec: the order.
        chunk_samples: (M,) samples per chunk.
        global_batch: B.
        correlation: rho, the correlation of samples of one chunk; 1: chunks sorted by label.

    Source: measured over whole epochs with K = M/16, 0.52 to 1.03 x this bound (benchmarks/order.py, 2026-11-20).
    """
    if spec.shuffle == "none":
        return 1.0 + correlation * (global_batch - 1)
    lane_chunks = np.count_nonzero(chunk_samples) / spec.lanes
    alike = (global_batch / spec.lanes - 1) * (1 / spec.lane_window - 1 / lane_chunks)
    return 1.0 + correlation * min(max(0.0, alike), float(chunk_samples.max()) - 1)


def is_bound_checked(spec: OrderSpec, chunk_samples: Integers, global_batch: int) -> bool:
    """Whether B is at most half of the samples of K chunks, where `vif_bound` was checked."""
    mean = float(chunk_samples.sum()) / max(1, int(np.count_nonzero(chunk_samples)))
    return global_batch <= spec.lanes * spec.lane_window * mean / 2


class LaneSpread(msgspec.Struct, frozen=True):
    """How the lanes are spread over the nodes.

    Attributes:
        nodes: machines with equal numbers of consecutive ranks.
        crossing: lanes that more than one node draws from: their chunks are fetched once per node.
        store_factor: store bytes of an epoch over all nodes / bytes of the dataset, without a cache.
        suggested_lanes: nearest lane count at which no two nodes share a lane; None if not needed, or if none exists
            (without shuffle).
    """

    nodes: int
    crossing: tuple[int, ...]
    store_factor: float
    suggested_lanes: int | None

    def __str__(self) -> str:
        if self.suggested_lanes is None and self.crossing:
            return (
                f"{self.nodes} nodes read a run of every batch each: without shuffle most chunks "
                f"are fetched by all of them, store bytes up to {self.store_factor:.2f} x dataset"
            )
        if not self.crossing:
            return f"{self.nodes} nodes share no lane: store bytes 1.00 x dataset"
        lanes = ", ".join(map(str, self.crossing[:8]))
        more = f" and {len(self.crossing) - 8} more" if len(self.crossing) > 8 else ""
        return (
            f"{self.nodes} nodes share the lanes {lanes}{more}: store bytes up to "
            f"{self.store_factor:.2f} x dataset; Order(lanes={self.suggested_lanes}) makes it 1.00 "
            "(another order: only for a new run)"
        )


def describe_lane_spread(spec: OrderSpec, global_batch: int, nodes: int) -> str:
    """Returns a warning if several nodes fetch the chunks of one lane, "" if none do or the batch cannot be split."""
    if nodes == 1 or global_batch % nodes:
        return ""
    spread = lane_spread(spec, global_batch, nodes)
    return str(spread) if spread.crossing else ""


def lane_spread(spec: OrderSpec, global_batch: int, nodes: int) -> LaneSpread:
    """Predicts which lanes cross nodes.

    Raises:
        ConfigError: the nodes cannot share the batch equally.
    """
    if spec.shuffle == "none":
        # Every node needs every chunk with one lane, because a chunk has samples of several batches.
        return LaneSpread(nodes, (0,) if nodes > 1 else (), float(nodes), None)
    drawn: Counter[int] = Counter()
    for node in range(nodes):
        rank_split = RankSplit(spec.lanes, global_batch, nodes, node)
        drawn.update(rank_split.rank_lanes(0).tolist())
    crossing = tuple(sorted(lane for lane, count in drawn.items() if count > 1))
    factor = sum(drawn.values()) / max(1, len(drawn))
    return LaneSpread(nodes, crossing, factor, near_lanes(spec, global_batch, nodes) if crossing else None)


def near_lanes(spec: OrderSpec, global_batch: int, nodes: int) -> int:
    """The multiple of `nodes` that divides B and is nearest to L, the larger of two as near."""
    fits = [n for n in range(nodes, global_batch + 1, nodes) if global_batch % n == 0]
    return min(reversed(fits), key=lambda lanes: max(lanes / spec.lanes, spec.lanes / lanes))


def check_sample_shuffle(samples: int, total_bytes: int) -> None:
    """Refuses shuffle="sample" if a request per sample is too expensive.

    Raises:
        ConfigError: the mean sample is below 256 KiB; the text has the price of both.
    """
    mean = total_bytes / max(1, samples)
    if mean >= SAMPLE_SHUFFLE_FLOOR_BYTES:
        return
    blocks = -(-total_bytes // _BLOCK_REQUEST_BYTES)
    raise ConfigError(
        f'shuffle="sample" asks the store for every sample: {samples:,} requests per epoch '
        f"({samples * GET_PRICE_USD:,.2f} USD on S3) for {format_bytes(mean)} each, instead of "
        f'{blocks:,} ({blocks * GET_PRICE_USD:,.2f} USD) with shuffle="block"; it is allowed from '
        f"{format_bytes(SAMPLE_SHUFFLE_FLOOR_BYTES)} per sample on",
        field="shuffle",
    )


def explain(spec: OrderSpec, chunk_samples: Integers, global_batch: int, total_bytes: int, nodes: int = 1) -> str:
    """Describes the order in words, for `streamer explain` and the log.

    Args:
        spec: the order.
        chunk_samples: (M,) samples per chunk.
        global_batch: B.
        total_bytes: bytes of all chunks.
        nodes: number of machines.
    """
    order = f"{spec.order_id}: seed {spec.seed}, shuffle {spec.shuffle}, lanes by {spec.lanes_by}"
    samples = int(chunk_samples.sum())
    chunks = max(1, int(np.count_nonzero(chunk_samples)))
    dataset = (
        f"{counted(samples, 'samples')} in {counted(chunks, 'chunks')}, {format_bytes(total_bytes)}: "
        f"{samples / chunks:,.1f} samples, {format_bytes(total_bytes / chunks)} per chunk"
    )
    rows = {"order": order, "dataset": dataset}
    if spec.shuffle != "none":
        rows["lanes"] = f"{spec.lanes}: {global_batch / spec.lanes:g} samples of a batch from each"
        opened = min(spec.lanes * spec.lane_window, chunks)
        rows["window"] = (
            f"{counted(opened, 'chunks')} open over all nodes ({spec.lane_window} per lane, "
            f"shuffle_window={spec.window}): {format_bytes(opened * total_bytes / chunks)} of cache"
        )
        worst, mild = (vif_bound(spec, chunk_samples, global_batch, correlation=rho) for rho in (1.0, 0.1))
        checked = is_bound_checked(spec, chunk_samples, global_batch)
        caution = "" if checked else " (a guess: the batch exceeds half of the open samples)"
        rows["mixing"] = (
            f"variance of a batch's mean at most {worst:.2f} x a full shuffle's with chunks sorted by "
            f"label, {mild:.2f} x at a correlation of 0.1{caution}"
        )
        if advice := _advise(spec, chunk_samples, global_batch, total_bytes):
            rows["advice"] = advice
    if nodes > 1:
        rows["nodes"] = str(lane_spread(spec, global_batch, nodes))
    return "\n".join(f"{name:<8} {text}" for name, text in rows.items())


def _advise(spec: OrderSpec, chunk_samples: Integers, global_batch: int, total_bytes: int) -> str:
    """Describes the options for a better mixture, and their cost; "" if the mixture is good."""
    if vif_bound(spec, chunk_samples, global_batch) <= WELL_MIXED and is_bound_checked(
        spec, chunk_samples, global_batch
    ):
        return ""
    chunks = max(1, int(np.count_nonzero(chunk_samples)))
    window = find_good_window(spec, chunk_samples, global_batch)
    if window is None:
        dataset = f"{counted(int(chunk_samples.sum()), 'samples')} in {counted(chunks, 'chunks')}"
        return (
            f"no shuffle_window mixes {dataset} well in batches of {global_batch:,}: smaller chunks do (`streamer "
            "index --chunk-bytes`), or a dataset that was shuffled when it was written"
        )
    return (
        f"where adjacent samples of the dataset are alike (sorted by label), Order(shuffle_window={window}) makes it "
        f"at most {WELL_MIXED:.2f} x, and holds {format_bytes(window * total_bytes / chunks)} of the cache open; where "
        "the dataset was shuffled when it was written, nothing is to be done"
    )


def find_good_window(spec: OrderSpec, chunk_samples: Integers, global_batch: int) -> int | None:
    """The smallest window in whole chunks per lane that mixes well; None if there are too few chunks or samples."""
    lane_chunks = -(-int(np.count_nonzero(chunk_samples)) // spec.lanes)
    lane_window = spec.lane_window
    # The bound falls with every additional chunk.
    while (lane_window := 2 * lane_window) <= lane_chunks:
        wider = msgspec.structs.replace(spec, window=spec.lanes * lane_window)
        if vif_bound(wider, chunk_samples, global_batch) <= WELL_MIXED and is_bound_checked(
            wider, chunk_samples, global_batch
        ):
            return wider.window
    return None
