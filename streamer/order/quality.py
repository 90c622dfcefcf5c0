"""Predicts how well an order mixes and what it costs, before a byte is read, and describes both in words.

Used for `streamer explain` (`tools/explain_command.py`, `batches/rows/order_rows.py`), by `loader/kinds/` for warnings
and checks, and by `order/mix/explain.py`.
B is the global batch, n the samples, M the chunks, L the lanes, K the chunks that are open together, k those of a lane.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from streamer.config import counted, format_bytes
from streamer.errors import ConfigError
from streamer.order.hashing import Integers
from streamer.order.rank_split import RankSplit
from streamer.order.spec import OrderSpec

# Least mean size of a sample for which a request for each sample can be worth its time and money.
SAMPLE_SHUFFLE_FLOOR_BYTES = 256 * 1024
# Twice the variance of a full shuffle is that of a batch half as large. An order below that can gain little.
WELL_MIXED = 2.0
# S3 standard, us-east-1, 2025: 0.0004 USD per 1,000 GET requests.
GET_PRICE_USD = 0.4e-6
# Bytes that a request fetches with shuffle="block".
_BLOCK_REQUEST_BYTES = 8 * 1024 * 1024


def vif_bound(spec: OrderSpec, chunk_samples: Integers, global_batch: int, *, correlation: float = 1.0) -> float:
    """Returns a bound of the variance of a batch's mean, as a multiple of that of a full shuffle.

    It is 1 + rho (B/L - 1) (1/k - L/M) while B is at most half of the open samples: a batch takes B/L samples of each
    lane, from k of its M/L chunks. It is never above 1 + rho (s - 1), what whole chunks of s samples would give.
    Without shuffle it is 1 + rho (B - 1).

    Args:
        spec: the order.
        chunk_samples: (M,) samples per chunk.
        global_batch: B.
        correlation: rho, the correlation of samples of one chunk; 1 where chunks are sorted by label.

    Measured over whole epochs with K = M/16: 0.52 to 1.03 x this bound (benchmarks/order.py, 2026-11-20).
    """
    if spec.shuffle == "none":
        return 1.0 + correlation * (global_batch - 1)
    lane_chunks = np.count_nonzero(chunk_samples) / spec.lanes
    alike = (global_batch / spec.lanes - 1) * (1 / spec.lane_window - 1 / lane_chunks)
    return 1.0 + correlation * min(max(0.0, alike), float(chunk_samples.max()) - 1)


def is_bound_checked(spec: OrderSpec, chunk_samples: Integers, global_batch: int) -> bool:
    """Whether the global batch is at most half of the open samples: for such batches, `vif_bound` was measured."""
    mean = float(chunk_samples.sum()) / max(1, int(np.count_nonzero(chunk_samples)))
    return global_batch <= spec.lanes * spec.lane_window * mean / 2


class LaneSpread(msgspec.Struct, frozen=True):
    """Says how the lanes are spread over the nodes.

    Attributes:
        nodes: number of machines, each with the same number of consecutive ranks.
        crossing: lanes that more than one node draws from; each of these nodes fetches their chunks.
        store_factor: maximum bytes that all nodes fetch in an epoch without a cache, divided by those of the dataset.
        suggested_lanes: nearest number of lanes at which no two nodes share a lane, or None if no lane is shared, or
            without shuffle.
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
    """Predicts which lanes several nodes draw from.

    Args:
        spec: the order.
        global_batch: B.
        nodes: number of machines.

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
    """Returns the number of lanes nearest to L, as a ratio, that `nodes` divides and that divides the global batch."""
    fits = [n for n in range(nodes, global_batch + 1, nodes) if global_batch % n == 0]
    return min(reversed(fits), key=lambda lanes: max(lanes / spec.lanes, spec.lanes / lanes))


def check_sample_shuffle(samples: int, total_bytes: int) -> None:
    """Refuses shuffle="sample" if a request for each sample is too expensive.

    Args:
        samples: number of samples.
        total_bytes: bytes of all objects.

    Raises:
        ConfigError: samples have less than 256 KiB on average; the text has the prices of both kinds of shuffle.
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
    """Describes the order in words, a line for each aspect.

    Args:
        spec: the order.
        chunk_samples: (M,) samples per chunk.
        global_batch: B.
        total_bytes: bytes of all chunks.
        nodes: number of machines.

    Raises:
        ConfigError: the nodes cannot share the batch equally.
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
    """Returns the smallest K that mixes well, of k doubled again and again; None if there are too few chunks."""
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
