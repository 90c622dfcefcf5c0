"""Tests of the chunks of cohorts as steps of the engine, and of the steps of batches over epochs, as pure functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streamer.loader.kinds.growing.session import CohortFeed, Steps
from streamer.order.growing import Cohorts
from streamer.order.spec import OrderSpec

CHUNKS, SAMPLES, SIZE = 64, 10, 1000
NEVER = np.iinfo(np.int64).max


@pytest.fixture
def cohorts() -> Cohorts:
    """Returns 64 chunks of 10 samples in two lanes: 32 cohorts of a chunk per lane."""
    return Cohorts(OrderSpec("x" * 32, 1, "block", 2, 8), np.full(CHUNKS, SAMPLES, np.int64))


def feed_of(cohorts: Cohorts, steps: int, begin: int, end: int) -> CohortFeed:
    """Makes a feed of chunks of 1,000 bytes, whose running round has `steps` steps and uses some cohorts."""
    return CohortFeed(cohorts, np.arange(2), np.full(CHUNKS, SIZE, np.int64), steps=steps, begin=begin, end=end)


def test_the_running_round_comes_first_by_its_batches(cohorts: Cohorts) -> None:
    """Chunks that a batch of the running round still needs are asked for with that batch.

    The others come after it with their cohort.
    """
    in_use = cohorts.chunks(np.arange(2), 3, 7, earlier=True).chunk
    first_batch = np.full(CHUNKS, NEVER)
    first_batch[in_use[:4]] = [5, 1, 4, 0]
    feed = feed_of(cohorts, 6, 3, 7)
    schedule = feed.first(first_batch)
    first = dict(zip(schedule.chunk.tolist(), schedule.first.tolist(), strict=True))
    assert [first[chunk] for chunk in in_use[:4].tolist()] == [5, 1, 4, 0]
    assert all(first[chunk] >= 6 for chunk in in_use[4:].tolist())
    assert schedule.first.tolist() == sorted(schedule.first.tolist())
    assert feed.sent == 7
    assert feed.live_bytes == len(in_use) * SIZE
    assert (feed.cohorts_through(5), feed.cohorts_through(6), feed.cohorts_through(9)) == (3, 4, 7)


def test_cohorts_are_asked_for_while_there_is_room(cohorts: Cohorts) -> None:
    """Cohorts are asked for while their bytes fit beside those in use, and none where they do not.

    Released ones free bytes.
    """
    feed = feed_of(cohorts, 0, 0, 0)
    whole = feed.extend(4, 100 * SIZE)
    assert whole is not None
    assert feed.sent == 4
    live = feed.live_bytes
    assert live == len(whole.chunk) * SIZE
    assert feed.extend(32, live) is None
    forced = feed.extend(6, math.inf)
    assert forced is not None
    assert feed.sent == 6
    assert feed.find_last_fit(0, 6, live) == 4
    before = feed.live_bytes
    feed.release(2)
    assert before - feed.live_bytes in range(3 * SIZE, 5 * SIZE)
    assert forced.first.min() == feed.step(4)


@pytest.mark.parametrize("start", [0, 30])
def test_steps_and_positions_belong_together(start: int) -> None:
    """Each step has its positions and its batch, and each position its step, also after a resume in mid-epoch."""
    steps = Steps(2, start // 10, 2 * 100 + start, (100 - start) // 10, 10, 100, 10)
    positions = [steps.begin(step) for step in range(25)]
    assert positions == list(range(200 + start, 450 + start, 10))
    for step, position in enumerate(positions):
        assert steps.step_of(position // 100, position % 100 // 10) == step
        assert steps.end(step) == position + 10
        assert steps.count_before(position) == step
        assert steps.count_before(position + 9) == step


def test_a_last_batch_that_is_filled_up_ends_with_its_epoch() -> None:
    """A last batch that is filled up ends with its epoch: 4 batches of 30 for 100 samples end at 30, 60, 90 and 100."""
    steps = Steps(0, 0, 0, 4, 4, 100, 30)
    assert [steps.end(step) for step in range(5)] == [30, 60, 90, 100, 130]
    assert [steps.count_before(position) for position in (90, 99, 100, 130)] == [3, 3, 4, 5]
