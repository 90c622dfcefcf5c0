"""Tests of how good an order is, what it costs, and the words for it."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.order import EpochOrder, OrderSpec, RankPlan, explain, lane_spread, vif_bound
from streamer.order.quality import check_sample_shuffle

MiB = 1 << 20


def _spec(lanes: int, window: int) -> OrderSpec:
    return OrderSpec("a" * 32, 17, "block", lanes, window)


def _measured_vif(spec: OrderSpec, sizes: np.ndarray, batch: int, epochs: int) -> float:
    """Returns the expected variance of a batch's mean, times B, of a value drawn per chunk, of variance 1.

    The variance is that over the samples. With n_c samples of chunk c in a batch it is (sum n_c**2 / B - B/M) / (1 -
    1/M): no noise of drawn values.
    """
    chunks = len(sizes)
    chunk_of = np.repeat(np.arange(chunks), sizes)
    order = EpochOrder(spec, sizes, 0)
    batches = len(chunk_of) // batch
    row = np.repeat(np.arange(batches) * chunks, batch)
    squares = 0.0
    for epoch in range(epochs):
        drawn = order.open_epoch(epoch).ordinals(np.arange(batches * batch))
        counts = np.unique(row + chunk_of[drawn], return_counts=True)[1]
        squares += float((counts.astype(float) ** 2).sum()) / batches
    return (squares / epochs / batch - batch / chunks) / (1 - 1 / chunks)


@pytest.mark.parametrize(("window", "batch"), [(16, 128), (64, 128), (256, 256)])
def test_batches_are_mixed_as_well_as_the_bound_says(window: int, batch: int) -> None:
    """Over chunks sorted by label the variance of a batch's mean is at most 1.05 x the bound, over whole epochs."""
    sizes = np.full(16 * window, 50)
    spec = _spec(8, window)
    measured = _measured_vif(spec, sizes, batch, 2)
    assert measured <= 1.05 * vif_bound(spec, sizes, batch)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_few_samples_per_chunk_are_mixed_over_the_whole_window(size: int) -> None:
    """Chunks of few samples are mixed over the whole window, as well as the bound says.

    Regression: with 4 samples per chunk, closing a chunk after 4 groups gave 3.33 where 1.91 was promised.
    """
    sizes = np.full(4096, size)
    spec = _spec(8, 256)
    assert _measured_vif(spec, sizes, 256, 2) <= 1.05 * vif_bound(spec, sizes, 256)


def test_the_bound_is_that_of_the_design() -> None:
    """The bound is 1 + rho (B/L - 1)(1/k - L/M), and 1 for one-sample chunks or a window of everything."""
    assert vif_bound(_spec(8, 64), np.full(800, 50), 128) == pytest.approx(1 + 15 * (1 / 8 - 1 / 100))
    assert vif_bound(_spec(8, 64), np.full(800, 50), 128, correlation=0.1) == pytest.approx(1.1725)
    assert vif_bound(_spec(8, 64), np.full(800, 1), 128) == 1.0
    assert vif_bound(_spec(8, 800), np.full(800, 50), 128) == 1.0
    assert vif_bound(OrderSpec("m", 1, "none", 1, 1), np.full(800, 50), 128) == 128.0


@pytest.mark.parametrize("epochs", [(0, 1), (1, 2), (0, 7)])
def test_positions_do_not_correlate_between_epochs(epochs: tuple[int, int]) -> None:
    """The mean positions of chunks in two epochs correlate by less than 4/sqrt(chunks)."""
    chunks, size = 2000, 10
    order = EpochOrder(_spec(8, 64), np.full(chunks, size), 0)
    means = []
    for epoch in epochs:
        position = np.argsort(order.open_epoch(epoch).ordinals(np.arange(chunks * size)))
        means.append(position.reshape(chunks, size).mean(axis=1))
    assert abs(np.corrcoef(*means)[0, 1]) < 4 / np.sqrt(chunks)


def test_nodes_that_divide_the_lanes_share_none() -> None:
    """Nodes whose number divides the lanes share none, and read 1.00 x the dataset from the store."""
    spread = lane_spread(_spec(8, 64), 256, 4)
    assert (spread.crossing, spread.store_factor, spread.suggested_lanes) == ((), 1.0, None)
    assert str(spread) == "4 nodes share no lane: store bytes 1.00 x dataset"


def test_three_nodes_on_eight_lanes_share_two_and_the_cure_is_named() -> None:
    """Three nodes on eight lanes share two of them, and the text says how many lanes avoid it.

    Lanes 2 and 5 have two nodes each: 10 lanes are fetched instead of 8; 6 lanes avoid it.
    """
    spread = lane_spread(_spec(8, 64), 384, 3)
    assert (spread.crossing, spread.store_factor, spread.suggested_lanes) == ((2, 5), 1.25, 6)
    assert "Order(lanes=6) makes it 1.00" in str(spread)
    assert lane_spread(_spec(6, 64), 384, 3).crossing == ()


def test_the_prediction_is_what_the_schedules_ask_for() -> None:
    """The predicted factor of store bytes is what the schedules of three nodes ask for, but for the cut chunks."""
    order = EpochOrder(_spec(8, 64), np.full(1600, 24), 0)
    asked = sum(len(RankPlan(order, 384, 3, node).schedule()) for node in range(3))
    assert asked / 1600 == pytest.approx(lane_spread(order.spec, 384, 3).store_factor, abs=0.01)


def test_without_shuffle_all_nodes_read_nearly_everything() -> None:
    """Without shuffle every node reads nearly the whole dataset, and the text says so."""
    spread = lane_spread(OrderSpec("m", 1, "none", 1, 1), 96, 3)
    assert (spread.store_factor, spread.suggested_lanes) == (3.0, None)
    assert "without shuffle" in str(spread)


def test_sample_shuffle_of_small_samples_is_refused_with_its_price() -> None:
    """`shuffle="sample"` of small samples is refused with its requests and their price, and taken for large ones.

    1.28 million samples of 110 KB: 1.28 million requests instead of 16,785.
    """
    with pytest.raises(ConfigError, match=r"1,280,000 requests per epoch \(0\.51 USD on S3\) .* 16,785"):
        check_sample_shuffle(1_280_000, 1_280_000 * 110_000)
    check_sample_shuffle(1000, 1000 * 256 * 1024)


def test_the_order_is_explained_in_words() -> None:
    """An order is explained on six lines: id, dataset, lanes, window, mixing and nodes, with their numbers."""
    text = explain(_spec(8, 256), np.full(17_100, 75), 256, 140 * 10**9, nodes=2)
    assert text.splitlines() == [
        f"order    {_spec(8, 256).order_id}: seed 17, shuffle block, lanes by seed",
        "dataset  1,282,500 samples in 17,100 chunks, 140.0 GB: 75.0 samples, 8.2 MB per chunk",
        "lanes    8: 32 samples of a batch from each",
        "window   256 chunks open over all nodes (32 per lane, shuffle_window=256): 2.1 GB of cache",
        "mixing   variance of a batch's mean at most 1.95 x a full shuffle's with chunks sorted by label, "
        "1.10 x at a correlation of 0.1",
        "nodes    2 nodes share no lane: store bytes 1.00 x dataset",
    ]


def test_a_guess_is_called_a_guess() -> None:
    """The explained variance is called a guess where the batch exceeds half of the open samples.

    The bound was not checked there.
    """
    text = explain(_spec(8, 16), np.full(1000, 4), 256, 10**9)
    assert "(a guess: the batch exceeds half of the open samples)" in text


def test_a_poor_mixture_comes_with_advice() -> None:
    """A poor mixture is explained with the window to set and the bytes of cache that it holds open."""
    sizes, spec = np.full(17_100, 75), _spec(8, 8)
    text = explain(spec, sizes, 256, 140 * 10**9)
    assert vif_bound(spec, sizes, 256) > 30
    assert "\nadvice   where adjacent samples of the dataset are alike (sorted by label), " in text
    assert " Order(shuffle_window=256) makes it at most 2.00 x, and holds 2.1 GB of the cache open" in text
    assert vif_bound(_spec(8, 256), sizes, 256) <= 2.0 < vif_bound(_spec(8, 128), sizes, 256)


def test_too_few_chunks_to_mix_are_called_so() -> None:
    """A dataset of too few chunks is explained as one that no window mixes well."""
    assert "no shuffle_window mixes 200 samples in 2 chunks well" in explain(_spec(1, 1), np.full(2, 100), 128, 10**6)


def test_without_shuffle_there_is_little_to_explain() -> None:
    """Without shuffle only the order and the dataset are explained."""
    text = explain(OrderSpec("m", 1, "none", 1, 1), np.full(1000, 4), 256, 10**9)
    assert [line.split()[0] for line in text.splitlines()] == ["order", "dataset"]
