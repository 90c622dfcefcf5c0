"""Tests of steps of a session, shares of workers and schedules, on a fake engine that keeps exactly what is leased."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import msgspec
import numpy as np
import pytest

from streamer import Order
from streamer.batches.skipping import SkipLedger
from streamer.errors import BrokenError
from streamer.loader.kinds.step_session import Share, open_bytes
from streamer.loader.rank.sample_iterator import IterationProgress, SampleIterator
from streamer.wire.schedule import EpochSchedule


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("first", [0, 4, 13])
def test_shares_are_the_batches_dealt_in_turn(workers, first):
    """Each batch from `first` on is in exactly one share, in order, and none before it."""
    shares = [Share(worker, workers, first) for worker in range(workers)]
    dealt = [[share.batch(step) for step in range(share.steps(17))] for share in shares]
    assert sorted(chain(*dealt)) == list(range(first, 17))
    assert all(list(batches) == sorted(batches) for batches in dealt)
    assert {batches[0] % workers for batches in dealt if batches} <= {(first + w) % workers for w in range(workers)}


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_steps_of_a_span_are_those_of_its_batches(workers):
    """The steps of a span of batches are those of a share's batches inside of it, both ends included."""
    for worker in range(workers):
        share = Share(worker, workers, 3)
        mine = [share.batch(step) for step in range(20)]
        for low in range(3, 12):
            for high in range(low, 12):
                inside = [step for step, batch in enumerate(mine) if low <= batch <= high]
                first = int(share.steps_from(np.array([low]))[0])
                last = int(share.steps_until(np.array([high]))[0])
                assert list(range(first, last + 1)) == inside


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"order": Order(lanes=2, shuffle_window=4)}])
def test_a_share_reads_only_what_is_leased(make_dataset, folder, workers, first, options):
    """The shares of all workers have the rest of the epoch together, and read only leased chunks."""
    prepared = make_dataset(folder, **options)._get_opening().prepare(7)
    found: Counter[int] = Counter()
    for worker in range(workers):
        progress = IterationProgress(2, Share(worker, workers, first))
        samples = SampleIterator(prepared, progress, SkipLedger(0), lambda epoch: None)
        found.update(str(sample["__key__"]) for sample in samples)
    expected: Counter[int] = Counter()
    for batch in range(first, prepared.plan(2).batches):
        ordinals = prepared.ordinals(2, batch)
        expected.update(prepared.members.each[0].manifest.name(ordinal).object_key for ordinal in ordinals.tolist())
    assert found == expected


def test_a_session_goes_on_over_the_epochs_end(fake_engine, make_dataset, folder):
    """Steps of a session count on over the end of an epoch.

    The engine gets the next epoch before the last quarter of the running one.
    """
    prepared = make_dataset(folder)._get_opening().prepare(10)
    session = prepared.session(0, 4)
    engine_session = fake_engine.sessions[0]
    assert [session.step_of(0, batch) for batch in (4, 9)] == [0, 5]
    for step in range(4):
        session.wait(step)
        session.finish(step)
    assert len(engine_session.epochs) == 1, "not asked for three quarters yet"
    session.want(4)
    assert [schedule.epoch for schedule in engine_session.epochs] == [0, 1]
    assert engine_session.epochs[1].first.min() == 6
    assert session.step_of(1, 0) == 6
    assert session.step_of(2, 3) == 19
    maker = prepared.maker()
    for epoch in (1, 2):
        for batch in range(10):
            session.wait(session.step_of(epoch, batch))
            for place in maker.places(epoch, prepared.ordinals(epoch, batch)):
                maker.make(place)
            session.finish(session.step_of(epoch, batch) + 1)
    session.close()
    session.close()
    assert engine_session.closed


def test_a_long_job_remembers_few_epochs(make_dataset, folder):
    """A session forgets epochs that are over.

    Regression: every epoch stayed, 0.3 kB each; 1,000 epochs of 10 batches were 350 kB of a rank.
    """
    session = make_dataset(folder)._get_opening().prepare(10).session(0, 0)
    for epoch in range(30):
        for batch in range(10):
            step = session.step_of(epoch, batch)
            session.want(step + 12)  # a look-ahead of more than an epoch
            session.finish(step + 1)
    assert len(session._bases) <= 4
    with pytest.raises(ValueError, match="epoch 3"):
        session.step_of(3, 0)
    session.close()


def test_an_epoch_that_is_over_is_not_in_the_session(make_dataset, folder):
    """A session that begins with an epoch has no step of an earlier one."""
    session = make_dataset(folder)._get_opening().prepare(10).session(3, 0)
    with pytest.raises(ValueError, match="epoch 2"):
        session.step_of(2, 0)
    session.close()


def test_the_session_identifies_itself_to_the_engine(fake_engine, make_dataset, folder):
    """A session tells the engine its dataset, consumer, order, batch, ranks, start and stream.

    It also says how many bytes are open at once.
    """
    dataset = make_dataset(folder, rank=1, world_size=2, order=Order(shuffle_window=4))
    prepared = dataset._get_opening().prepare(5)
    prepared.session(0, 2).close()
    spec = fake_engine.sessions[0].spec
    assert spec.dataset == fake_engine.manifest.digest
    assert (spec.consumer, spec.order_id, spec.global_batch, spec.world_size) == (
        "rank 1",
        prepared.spec.order_id,
        10,
        2,
    )
    assert spec.start == 20
    assert 0 < spec.open_bytes <= int(fake_engine.manifest.chunk_local_bytes.sum())
    assert spec.stream == "shuffle block of all"
    half = dataset.select(fraction=(0, 0.5))
    half._get_opening().prepare(5).session(0, 0).close()
    assert fake_engine.sessions[1].spec.stream == f"shuffle block of {half._member.open().digest}"


def test_workers_do_not_compare_their_starts(fake_engine, make_dataset, folder):
    """The session of a worker names the worker as its consumer and has no start to be compared with others."""
    prepared = make_dataset(folder)._get_opening().prepare(5)
    prepared.share_session(0, Share(1, 2, 6), endless=False).close()
    assert (fake_engine.sessions[0].spec.start, fake_engine.sessions[0].spec.consumer) == (0, "rank 0 worker 1 of 2")


def test_a_schedule_that_ends_before_its_batches_is_an_error(make_dataset, folder, monkeypatch):
    """A schedule that ends before its last batch is an error.

    The reader of that batch would wait for an engine that is asked for nothing.
    """
    prepared = make_dataset(folder)._get_opening().prepare(10)
    whole = prepared.schedule

    def shorter(epoch: int, share: Share) -> tuple[EpochSchedule, int]:
        schedule, steps = whole(epoch, share)
        return msgspec.structs.replace(schedule, last=np.minimum(schedule.last, steps - 2)), steps

    monkeypatch.setattr(prepared, "schedule", shorter)
    with pytest.raises(BrokenError, match=r"epoch 2 has 7 batches.*up to batch 5"):
        prepared.session(2, 3)


def test_open_bytes_is_the_highest_tide():
    """The bytes open at once are the maximum over all steps, a chunk counting through its last step.

    Each member has its own.
    """
    sizes = np.array([100, 10, 1, 1000], np.int64)

    def opened(*spans: tuple[int, int, int], first_chunks: tuple[int, ...] = (0, 4)) -> list[int]:
        chunk, first, last = (np.array([span[column] for span in spans], np.int64) for column in range(3))
        return open_bytes(EpochSchedule(0, chunk.astype(np.uint32), first, last), sizes, first_chunks).tolist()

    assert opened((0, 0, 3), (1, 2, 5), (2, 4, 6), (3, 7, 7)) == [1000]
    assert opened((0, 0, 3), (1, 3, 5), (2, 4, 6)) == [110]
    assert opened((0, 0, 2), (1, 3, 5)) == [100]
    assert opened() == [0]
    assert opened((0, 0, 3), (1, 3, 5), (2, 4, 6), (3, 7, 7), first_chunks=(0, 2, 2, 4)) == [110, 0, 1000]
