"""Random datasets and logs of admissions: every admission is used `reuse` times, and uses stay level."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.order.growing import AdmissionLog, Cohorts, GrowingOrder, GrowingSpec, KnownRounds, rounds_between
from streamer.order.plan import RankPlan
from streamer.order.protocol import Batches
from streamer.order.rank_split import RankSplit
from streamer.order.row_order import RowOrder
from streamer.order.rows.content import RowContent, row_counts
from streamer.order.rows.sets import Sets, make_sets
from streamer.order.rows.spec import RowSpec
from streamer.order.spec import OrderSpec
from streamer.order.state import State

PASSES = 2
ROW_SPEC = RowSpec(64)
QUICK = settings(suppress_health_check=[HealthCheck.too_slow])


@st.composite
def logs(draw: st.DrawFn) -> AdmissionLog:
    """A dataset, and the log of a run over two passes whose arrivals were random; all uses are made at its end."""
    lanes = draw(st.sampled_from([1, 2, 3, 8]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    sizes = rng.integers(0, 30, draw(st.integers(8, 120)))
    sizes[0] = max(int(sizes[0]), lanes)
    return drawn_log(draw, Cohorts(spec_of(draw, lanes), sizes.astype(np.int64)), rng)


def spec_of(draw: st.DrawFn, lanes: int) -> OrderSpec:
    return OrderSpec("x" * 32, draw(st.integers(0, 99)), "block", lanes, lanes * draw(st.sampled_from([1, 4])))


def drawn_log(draw: st.DrawFn, cohorts: Cohorts, rng: np.random.Generator) -> AdmissionLog:
    """A run over two passes whose arrivals are random."""
    reuse = draw(st.integers(1, 5))
    log = AdmissionLog(cohorts, reuse, min(cohorts.per_pass, draw(st.integers(1, 3))))
    most = draw(st.integers(1, max(1, cohorts.per_pass // 2)))
    end = PASSES * cohorts.per_pass
    while log[len(log) - 1].end < end:
        left = end - log[len(log) - 1].end
        log.admit(min(left, int(rng.integers(0, most + 1))))
    return log


class Rows(msgspec.Struct, frozen=True):
    """Packed documents in chunks; `first`: documents before each chunk."""

    costs: np.ndarray
    first: np.ndarray
    sets: Sets
    counts: np.ndarray

    def documents(self, number: int) -> np.ndarray:
        """The documents of a set."""
        return np.concatenate([np.arange(*self.first[[c, c + 1]]) for c in self.sets.chunks(number).astype(int)])


@st.composite
def packed_logs(draw: st.DrawFn) -> tuple[AdmissionLog, Rows]:
    """A run as of `logs`, of documents that are packed into rows."""
    lanes, rng = draw(st.sampled_from([1, 2, 3])), np.random.default_rng(draw(st.integers(0, 1 << 32)))
    samples = rng.integers(0, 20, draw(st.integers(6, 40)))
    samples[0] = 4 * lanes
    costs = rng.integers(1, 100, int(samples.sum()))
    first = np.append(0, np.cumsum(samples))
    sets = make_sets(samples, draw(st.integers(1, 4)), shuffle=True)
    rows = Rows(costs, first, sets, np.zeros(0))
    counts = row_counts(ROW_SPEC, sets, lambda number: costs[rows.documents(number)])
    log = drawn_log(draw, Cohorts(spec_of(draw, lanes), counts, sets), rng)
    return log, msgspec.structs.replace(rows, counts=counts)


def trained(log: AdmissionLog, number: int) -> np.ndarray:
    """The samples of one round, in its order."""
    of = log[number]
    order = GrowingOrder(log, np.arange(log.cohorts.spec.lanes), of.stop or 1, 0)
    return order.ordinals(np.arange(of.start, of.stop))


@QUICK
@given(logs())
def test_uses_are_level_after_every_round_and_inside_it(log: AdmissionLog) -> None:
    """Uses of samples differ by at most `reuse` after each round of a growing dataset, and by `reuse` + 1 inside it.
    The log's bounds of uses hold, and the rounds' positions follow each other.
    """
    samples, reuse = log.cohorts.samples, log.reuse
    uses, seen = np.zeros(samples, int), set()
    for number in range(len(log)):
        of = log[number]
        least, most = log.find_use_bounds(of.start)
        assert least <= uses.min()
        assert uses.max() <= most <= least + reuse
        codes = trained(log, number)
        assert not seen.intersection(codes.tolist())
        seen.update(codes.tolist())
        half = len(codes) // 2
        for part in (codes[:half], codes[half:]):
            np.add.at(uses, part % samples, 1)
            assert uses.max() - uses.min() <= reuse + 1
        assert uses.max() - uses.min() <= reuse
        assert of.stop == (log[number + 1].start if number + 1 < len(log) else log.stop)


@QUICK
@given(logs())
def test_each_admission_has_exactly_its_uses(log: AdmissionLog) -> None:
    """A round trains each sample of its cohorts once, and each cohort is in `reuse` rounds, which follow each other."""
    cohorts = log.cohorts
    admitted = [cohort_samples(cohorts, cohort) for cohort in range(log[len(log) - 1].end)]
    for turn in range(PASSES):
        one_pass = np.concatenate(admitted[turn * cohorts.per_pass : (turn + 1) * cohorts.per_pass])
        assert np.array_equal(np.sort(one_pass), np.arange(cohorts.samples))
    rounds: dict[int, list[int]] = {}
    for number in range(len(log)):
        of = log[number]
        for cohort in range(of.begin, of.end):
            rounds.setdefault(cohort, []).append(number)
        expected = np.sort(np.concatenate(admitted[of.begin : of.end]))
        assert np.array_equal(np.sort(trained(log, number) % cohorts.samples), expected)
    for cohort, found in rounds.items():
        assert found == list(range(found[0], found[0] + len(found)))
        assert len(found) == log.reuse or (cohort >= log.next_begin and found[-1] == len(log) - 1)


def cohort_samples(cohorts: Cohorts, cohort: int) -> np.ndarray:
    """The samples of one cohort over all lanes."""
    parts = [cohorts.pieces(lane, cohort, cohort + 1) for lane in range(cohorts.spec.lanes)]
    parts.append(cohorts.rests(cohort, cohort + 1))
    runs = [
        cohorts.chunk_first[chunk] + offset + np.arange(size)
        for part in parts
        for chunk, offset, size in zip(part.chunk, part.offset, part.size, strict=True)
    ]
    return np.concatenate(runs)


@QUICK
@given(logs(), st.integers(0, 1 << 32))
def test_any_place_and_any_log_again_give_the_same_samples(log: AdmissionLog, seed: int) -> None:
    """Positions read at random have the samples of the order read from its start.
    A log that is made again from `admitted` gives the same samples.
    """
    again = AdmissionLog(log.cohorts, log.reuse, log.least, log.admitted)
    lanes = np.arange(log.cohorts.spec.lanes)
    whole = GrowingOrder(log, lanes, log.stop, 0).ordinals(np.arange(log.stop))
    picks = np.random.default_rng(seed).integers(0, log.stop, 50)
    assert np.array_equal(GrowingOrder(again, lanes, log.stop, 0).ordinals(picks), whole[picks])


@QUICK
@given(logs(), st.integers(0, 1 << 32))
def test_a_worker_needs_the_rounds_of_its_batch_only(log: AdmissionLog, seed: int) -> None:
    """A worker that is told only the rounds of its batch finds the same samples.
    A position of another round is an error.
    """
    first, last = np.sort(np.random.default_rng(seed).integers(0, log.stop, 2)).tolist()
    known, lanes = KnownRounds(log.cohorts), np.arange(log.cohorts.spec.lanes)
    rounds = rounds_between(log, first, last)
    known.set([(99, log.stop, log.stop + 1, 0, 1)])
    known.set([msgspec.structs.astuple(of) for of in rounds])
    positions = np.arange(first, last + 1)
    found, expected = (GrowingOrder(source, lanes, log.stop, 0).ordinals(positions) for source in (known, log))
    assert np.array_equal(found, expected)
    for outside in (rounds[0].start - 1, rounds[-1].stop):
        with pytest.raises(IndexError, match=f"position {outside} is in none"):
            known.find_round(outside)


@QUICK
@given(logs(), st.sampled_from([1, 2, 4]), st.integers(1, 3), st.integers(0, 1 << 32))
def test_ranks_have_their_chunks_admitted_before_they_need_them(
    log: AdmissionLog, world: int, share: int, seed: int
) -> None:
    """A rank's samples of a batch are in chunks that `chunks` and `needs` name for its lanes and rounds."""
    lanes = log.cohorts.spec.lanes
    batch = world * lanes * share
    rng = np.random.default_rng(seed)
    rank, start = int(rng.integers(world)), int(rng.integers(max(1, log.stop // batch))) * batch
    if start + batch > log.stop:
        return
    split = RankSplit(lanes, batch, world, rank)
    mine = split.rank_lanes(start)
    order = GrowingOrder(log, mine, log.stop, 0)
    positions = split.positions(np.array([start]))[0]
    chunks = set(order.chunks(order.ordinals(positions))[0].tolist())
    first, last = log.find_round(start), log.find_round(start + batch - 1)
    admitted = log.cohorts.chunks(mine, first.begin, last.end, earlier=True).chunk.tolist()
    assert chunks <= set(admitted)
    needed = {chunk for need in order.needs(split, Batches(start, batch, 0, 1)) for chunk in need.chunk.tolist()}
    assert chunks <= needed <= set(admitted)


class Resumes(msgspec.Struct, frozen=True):
    """A growing dataset that several ranks go on with after each of some places, each time with another batch.

    `parts`: global batch, number of ranks, and the batches that are delivered with them.
    """

    log: AdmissionLog
    epoch_samples: int
    parts: tuple[tuple[int, int, int], ...]

    def spec(self) -> GrowingSpec:
        log = self.log
        return GrowingSpec(log.cohorts.spec, log.reuse, self.epoch_samples, log.least, tuple(log.admitted))


@st.composite
def resumes(draw: st.DrawFn) -> Resumes:
    """Batches, ranks and lengths of epochs of which many do not divide each other."""
    log, first = draw(logs()), draw(st.integers(1, 12))
    epoch_samples = first * draw(st.integers(1, 30))
    parts = [(first, 1, draw(st.integers(0, 40)))]
    for _ in range(draw(st.integers(1, 3))):
        world = draw(st.sampled_from([1, 2, 3, 4]))
        parts.append((world * draw(st.integers(1, 8)), world, draw(st.integers(0, 40))))
    return Resumes(log, epoch_samples, tuple(parts))


def log_of(lanes: int) -> AdmissionLog:
    """The log of a small dataset that is admitted at once."""
    return AdmissionLog(Cohorts(OrderSpec("x" * 32, 0, "block", lanes, lanes), np.full(20, 12, np.int64)), 2, 2)


@QUICK
@given(resumes())
@example(Resumes(log_of(8), 240, ((8, 1, 1), (10, 2, 1), (12, 2, 0))))
@example(Resumes(log_of(8), 240, ((10, 1, 1), (12, 2, 0))))
@example(Resumes(log_of(8), 6, ((2, 1, 1), (6, 2, 0))))
@example(Resumes(log_of(8), 242, ((2, 1, 0), (4, 2, 0))))
def test_ranks_deliver_the_order_after_any_resumes(case: Resumes) -> None:
    """After resumes with other batches the ranks together deliver, in each epoch, the samples that one rank would.
    Each rank's samples are in chunks that are admitted and needed for its lanes.

    Regression: 8 lanes, epochs of 240 samples, batches of 8, then 10, then 12 on two ranks: from epoch 1 on a rank had
    lanes that it had no pieces of, so it took samples of another lane, or failed with an IndexError.
    """
    spec, every = case.spec(), np.arange(case.log.cohorts.spec.lanes)
    epoch = position = 0
    size = case.parts[0][0]
    for batch, world, delivered in case.parts:
        at = State(spec, epoch, position, size).resume(case.epoch_samples, batch)
        entry, size = (at.epoch, at.start), batch
        while case.log.stop < (at.epoch + 3) * case.epoch_samples:
            case.log.admit(1)
        for number in range(at.epoch, at.epoch + 2):
            check_epoch(case, spec, (batch, world), entry, number, every)
        whole = plan_of(case, every, RankSplit(len(every), batch, 1, 0), entry, at.epoch)
        epoch, position = at.epoch, whole.position(min(at.batch + delivered, whole.batches)) - whole.order.origin


def plan_of(case: Resumes, lanes: np.ndarray, split: RankSplit, entry: tuple[int, int], epoch: int) -> RankPlan:
    """The plan of an epoch, as `Plans` makes it."""
    order = GrowingOrder(case.log, lanes, case.epoch_samples, entry[0]).open_epoch(epoch)
    start = order.origin + (entry[1] if epoch == entry[0] else 0)
    return RankPlan(order, split.global_batch, split.world, split.rank, "fill", start=start)


def check_epoch(
    case: Resumes, spec: GrowingSpec, size: tuple[int, int], entry: tuple[int, int], epoch: int, every: np.ndarray
) -> None:
    """Compares the batches of all ranks in an epoch with those of one rank."""
    batch, world = size
    alone = plan_of(case, every, RankSplit(len(every), batch, 1, 0), entry, epoch)
    plans, lanes = [], []
    for rank in range(world):
        split = RankSplit(len(every), batch, world, rank)
        lanes.append(spec.rank_lanes(split, entry))
        plans.append(plan_of(case, lanes[-1], split, entry, epoch))
    for number in range(alone.batches):
        parts = [plan.batch(number) for plan in plans]
        whole = alone.batch(number)
        positions, ordinals = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("positions", "ordinals")
        )
        assert dict(zip(positions.tolist(), ordinals.tolist(), strict=True)) == dict(
            zip(whole.positions.tolist(), whole.ordinals.tolist(), strict=True)
        )
        assert len(positions) == batch == len(set(positions.tolist()))
        for plan, mine, part in zip(plans, lanes, parts, strict=True):
            chunks = set(plan.order.chunks(part.ordinals)[0].tolist())
            end = min(plan.position(number) + batch, plan.order.samples)
            begin = max(0, min(plan.position(number), end - len(every)))
            first, last = case.log.find_round(begin), case.log.find_round(end - 1)
            assert chunks <= set(case.log.cohorts.chunks(mine, first.begin, last.end, earlier=True).chunk.tolist())
            assert chunks <= set(plan.schedule(number, number + 1).chunk.tolist())


@QUICK
@given(logs())
def test_chunks_of_consecutive_cohorts_come_once_each(log: AdmissionLog) -> None:
    """The chunks of cohorts asked for one by one are those of all cohorts asked for at once, each use once."""
    cohorts, lanes = log.cohorts, np.arange(log.cohorts.spec.lanes)
    end = PASSES * cohorts.per_pass
    whole = sorted(zip(*(column.tolist() for column in cohorts.chunks(lanes, 0, end)), strict=True))
    steps = [
        use for j in range(end) for use in zip(*map(np.ndarray.tolist, cohorts.chunks(lanes, j, j + 1)), strict=True)
    ]
    assert sorted(steps) == whole


@QUICK
@given(packed_logs())
def test_documents_in_rows_are_used_as_often_as_rows(case: tuple[AdmissionLog, Rows]) -> None:
    """Uses of packed rows stay level, and each token of the first pass is used exactly `reuse` times:
    all uses of a row in a pass have the same content.
    """
    log, rows = case
    before, uses = np.append(0, np.cumsum(rows.counts)), np.zeros(log.cohorts.samples, int)
    tokens = [np.zeros(cost, int) for cost in rows.costs.tolist()]
    content = RowContent(ROW_SPEC, log.cohorts.spec.seed)
    for number in range(len(log)):
        turns, numbers = np.divmod(trained(log, number), log.cohorts.samples)
        for row, turn in zip(numbers.tolist(), turns.tolist(), strict=True):
            uses[row] += 1
            if turn % 2 or log[number].begin >= log.cohorts.per_pass:
                continue  # of the second pass, whose last uses are not made
            own = int(np.searchsorted(before, row, side="right")) - 1
            documents = rows.documents(own)
            made = content.rows(rows.costs[documents], documents, turn % 2)
            for item in range(*made.first[row - before[own] :][:2].tolist()):
                begin, size = made.items.begin[item], made.items.size[item]
                tokens[documents[made.items.document[item]]][begin : begin + size] += 1
        assert uses.max() - uses.min() <= log.reuse + 1
    assert all((of == log.reuse).all() for of in tokens)


@QUICK
@given(packed_logs(), st.integers(0, 1 << 32))
def test_sets_are_admitted_whole(case: tuple[AdmissionLog, Rows], seed: int) -> None:
    """All chunks of a row's set are admitted and needed with the first row of the set."""
    log, rows = case
    lanes = log.cohorts.spec.lanes
    start = int(np.random.default_rng(seed).integers(log.stop // lanes)) * lanes
    split, every = RankSplit(lanes, lanes, 1, 0), np.arange(lanes)
    order = RowOrder(GrowingOrder(log, every, log.stop, 0), rows.sets)
    codes = order.ordinals(np.arange(start, start + lanes))
    own = np.searchsorted(np.cumsum(rows.counts), codes % log.cohorts.samples, side="right")
    chunks = {chunk for number in own.tolist() for chunk in rows.sets.chunks(number).tolist()}
    assert set(order.chunks(codes)[0].tolist()) == chunks
    first, last = log.find_round(start), log.find_round(start + lanes - 1)
    admitted = log.cohorts.chunks(every, first.begin, last.end, earlier=True).chunk.tolist()
    needed = {chunk for need in order.needs(split, Batches(start, lanes, 0, 1)) for chunk in need.chunk.tolist()}
    assert chunks <= needed <= set(admitted)
