"""Tests of the cut "by_key", `lanes_by="key"` of an `Order`: lanes that do not follow the seed."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.base.splitmix import fold, fold_each
from streamer.errors import ConfigError
from streamer.order import EpochOrder, OrderSpec
from streamer.order.cut import cut_lanes
from streamer.order.spec import Cut

CHUNKS, SAMPLES, BATCH = 1600, 75, 512
SIZES = np.full(CHUNKS, SAMPLES)
WORDS = fold_each(fold(3), np.arange(CHUNKS))


def _lanes(spec: OrderSpec, words: np.ndarray) -> list[set[int]]:
    """Returns for each lane the words of its chunks."""
    sizes = np.full(len(words), SAMPLES)
    cut = cut_lanes(spec, sizes, 0, chunk_words=words)
    return [set(words[cut.pieces(np.array([lane]), sizes)[1]].tolist()) for lane in range(spec.lanes)]


def _spec(seed: int, cut: Cut = "by_key", lanes: int = 16) -> OrderSpec:
    return OrderSpec("m", seed, "block", lanes, 100, cut)


def test_twenty_seeds_have_the_same_lanes() -> None:
    """With cut "by_key" twenty seeds have the same lanes, and other orders inside of them."""
    assert all(_lanes(_spec(seed), WORDS) == _lanes(_spec(0), WORDS) for seed in range(1, 20))
    positions = np.arange(0, 1600, 16)
    zero, one = (EpochOrder(_spec(seed), SIZES, 0, chunk_words=WORDS).ordinals(positions) for seed in (0, 1))
    assert (zero != one).mean() > 0.9


def test_two_lanes_of_a_run_with_more_of_them_are_one_lane_of_another() -> None:
    """Two of 32 lanes by key are one of 16, so that jobs with different batches share caches, too."""
    halves = _lanes(_spec(0, lanes=32), WORDS)
    assert [one | other for one, other in zip(halves[::2], halves[1::2], strict=True)] == _lanes(_spec(0), WORDS)


def test_new_chunks_and_another_numbering_move_few_to_another_lane() -> None:
    """New chunks and another numbering move less than 10 % of the chunks to another lane by key.

    So it is after the data was indexed again: the keys decide, not the numbers.
    """
    before = {word: lane for lane, held in enumerate(_lanes(_spec(0), WORDS)) for word in held}
    grown = np.concatenate([fold_each(fold(4), np.arange(CHUNKS // 20)), WORDS[::-1]])
    after = {word: lane for lane, held in enumerate(_lanes(_spec(0), grown)) for word in held}
    assert np.mean([after[word] != lane for word, lane in before.items()]) < 0.1


def test_its_keys_are_needed() -> None:
    """An order with cut "by_key" is refused without the keys of the chunks."""
    with pytest.raises(ConfigError, match="by_key"):
        EpochOrder(_spec(0), SIZES, 0).ordinals(np.arange(3))


def _variance(cut: Cut, seed: int, labels: np.ndarray) -> float:
    """Returns the variance of the classes of a batch, as a multiple of that of a full shuffle; mean of one epoch."""
    chunk = np.repeat(np.arange(CHUNKS), SAMPLES)
    batches, classes = len(chunk) // BATCH, int(labels.max()) + 1
    order = EpochOrder(_spec(seed, cut), SIZES, 0, chunk_words=WORDS)
    drawn = labels[chunk[order.ordinals(np.arange(batches * BATCH))]]
    cells = np.repeat(np.arange(batches) * classes, BATCH) + drawn
    counts = np.bincount(cells, minlength=batches * classes).reshape(batches, classes)
    share = np.bincount(labels[chunk], minlength=classes) / len(chunk)
    return float(((counts - BATCH * share) ** 2).sum() / batches / (BATCH * (share * (1 - share)).sum()))


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(np.arange(CHUNKS), id="a class a chunk", marks=pytest.mark.slow),
        pytest.param(np.arange(CHUNKS) // 16, id="100 classes"),
    ],
)
def test_it_shuffles_as_well_as_a_fixed_cut(labels: np.ndarray) -> None:
    """Lanes by key mix chunks that are sorted by label as well as a fixed cut, within 5 % over ten seeds.

    Read: 6.12 and 6.12, 6.07 and 6.12 (2026-11-23).
    """
    means = {cut: np.mean([_variance(cut, seed, labels) for seed in range(10)]) for cut in ("by_key", "fixed")}
    assert means["by_key"] == pytest.approx(means["fixed"], rel=0.05)
