"""Mixes of arbitrary members, proportions and geometries: exactly once, fair over epochs, random access, schedules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.order import RankPlan, Schedule
from streamer.order.adopt import adopt
from streamer.order.mix import MixOrder, MixSource, MixSpec
from streamer.order.state import State
from tests.mixes import chunk_sizes, order, request

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
QUICK = settings(suppress_health_check=SLOW)
EPOCHS = 4


@dataclass(frozen=True)
class Case:
    """Members, and everything that can be said about their mix."""

    members: tuple[MixSource, ...]
    said: dict[str, object]
    batch: int

    @cached_property
    def spec(self) -> MixSpec:
        return request(self.names, **self.said).spec(self.members, self.batch)

    @property
    def names(self) -> list[str]:
        return [source.name for source in self.members]

    @property
    def sizes(self) -> list[int]:
        return [source.samples for source in self.members]

    def order(self, epoch: int) -> MixOrder:
        return order(self.spec, self.members, epoch)


_numbers = {
    "weights": st.floats(0.001, 1),
    "repeat": st.sampled_from([1, 1, 2, 3, 0.25, 0.7, 2.5]),
    "choose": st.integers(1, 900),
}


@st.composite
def _shares(draw: st.DrawFn, names: list[str]) -> dict[str, object]:
    kind = draw(st.sampled_from(["all", "weights", "repeat", "choose", "temperature", "stages"]))
    length = {"epoch_samples": draw(st.integers(1, 4000))}
    if kind == "all":
        return {}
    if kind == "temperature":
        return {"temperature": draw(st.floats(0.5, 20)), **length}
    if kind == "stages":
        pauses = st.fixed_dictionaries({name: st.integers(0, 3) for name in names}).filter(lambda w: any(w.values()))
        return {"weights": [(0, draw(pauses)), (draw(st.integers(1, 3)), draw(pauses))], **length}
    shares = draw(st.fixed_dictionaries(dict.fromkeys(names, _numbers[kind])))
    return {kind: shares, **(length if kind == "weights" else {})}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.one_of(st.integers(1, 60), st.integers(1, 3000)), min_size=1, max_size=8))
    members = tuple(
        MixSource(f"m{i}", f"{i:032x}", chunk_sizes(samples, draw(st.integers(1, 60))), 5 + i)
        for i, samples in enumerate(sizes)
    )
    lanes, slots = draw(st.integers(1, 16)), draw(st.integers(1, 9))
    said: dict[str, object] = {
        **draw(_shares([source.name for source in members])),
        "lanes": lanes,
        "batching": draw(st.sampled_from(["stratified", "random", "homogeneous"])),
        "window": draw(st.sampled_from([None, 1, 40, 400])),
        "seed": draw(st.integers(0, 1 << 40)),
    }
    if said["batching"] == "homogeneous":
        said["group"] = slots * draw(st.sampled_from([width for width in range(1, lanes + 1) if lanes % width == 0]))
    return Case(members, said, lanes * slots)


class Uses:
    """How often each sample of each member was used."""

    def __init__(self, case: Case) -> None:
        self.counts = [np.zeros(size, np.int64) for size in case.sizes]

    def add(self, mixed: MixOrder, codes: np.ndarray) -> None:
        members, ordinals = mixed.codes.members(codes), mixed.codes.ordinals(codes)
        for member, counts in enumerate(self.counts):
            np.add.at(counts, ordinals[members == member], 1)

    def add_epoch(self, mixed: MixOrder, stop: int) -> None:
        """The positions of an epoch before one, without repeats."""
        self.add(mixed, mixed.ordinals(np.flatnonzero(~mixed.repeats(np.arange(stop)))))

    def are_fair(self) -> bool:
        return all(counts.max() - counts.min() <= 1 for counts in self.counts)


@QUICK
@given(cases())
def test_every_epoch_goes_on_with_each_member_where_the_last_one_ended(case: Case) -> None:
    """Each epoch of a mix draws its quotas from where the last one ended, so all samples are used equally or once more.
    Any position can be asked for first.
    """
    uses, mixed = Uses(case), case.order(0)
    for epoch in range(EPOCHS):
        mixed = mixed.open_epoch(epoch)
        codes = mixed.ordinals(np.arange(mixed.samples))
        real = ~mixed.repeats(np.arange(mixed.samples))
        uses.add(mixed, codes[real])
        assert len(np.unique(codes)) == real.sum()
        assert uses.are_fair()
        assert [int(counts.sum()) for counts in uses.counts] == list(case.spec.stream_starts(epoch + 1))
        some = np.random.default_rng(epoch).integers(0, mixed.samples, 40)
        assert np.array_equal(case.order(epoch).ordinals(some), codes[some])


@QUICK
@given(cases(), st.integers(0, 1 << 20))
def test_whole_passes_are_exact_in_every_epoch(case: Case, x: int) -> None:
    """A member with whole passes has each sample that often in every epoch; repeats that fill batches are marked."""
    said = {
        name: value for name, value in case.said.items() if name in ("batching", "lanes", "group", "seed", "window")
    }
    passes = {name: 1 + (x >> index) % 2 for index, name in enumerate(case.names)}
    case = Case(case.members, {**said, "repeat": passes}, case.batch)
    mixed, world = case.order(x % EPOCHS), next(ranks for ranks in (3, 2, 1) if case.batch % ranks == 0)
    plans = [RankPlan(mixed, case.batch, world, rank) for rank in range(world)]
    uses, batches = Uses(case), [plan.batch(number) for plan in plans for number in range(plan.batches)]
    for plan in plans:
        assert all((plan.find_repeats(number) == plan.batch(number).repeated).all() for number in range(plan.batches))
    for batch in batches:
        uses.add(mixed, batch.ordinals[~batch.repeated])
    for name, counts in zip(case.names, uses.counts, strict=True):
        assert (counts == passes[name]).all()
    filled = sum(int(batch.repeated.sum()) for batch in batches)
    assert filled < case.batch * (len(case.members) if case.said["batching"] == "homogeneous" else 1)


@QUICK
@given(cases().filter(lambda case: case.said["batching"] == "homogeneous"), st.integers(0, 1 << 20))
def test_the_samples_of_a_group_are_of_one_member(case: Case, x: int) -> None:
    """Each group of a homogeneous batch has samples of one member, on any number of ranks,
    also after that number changes in mid-epoch.
    """
    mixed, group = case.order(x % EPOCHS), int(str(case.said["group"]))
    worlds = [ranks for ranks in range(1, 13) if case.batch % ranks == 0]
    before, after = (
        [RankPlan(mixed, case.batch, world, rank) for rank in range(world)]
        for world in (worlds[x % len(worlds)], worlds[x // 7 % len(worlds)])
    )
    for number in range(before[0].batches):
        plans = before if 2 * number < before[0].batches else after
        codes = np.concatenate([plan.batch(number).ordinals for plan in plans])
        groups = mixed.codes.members(codes).reshape(-1, group)
        assert (groups == groups[:, :1]).all()


@QUICK
@given(cases(), st.integers(0, 1 << 30))
def test_drawn_counts_what_was_delivered(case: Case, place: int) -> None:
    """The counts of samples drawn equal those delivered of each member, at any position of an epoch."""
    mixed = case.order(1)
    position = place % (mixed.samples + 1)
    delivered = np.flatnonzero(~mixed.repeats(np.arange(position)))
    members = mixed.codes.members(mixed.ordinals(delivered))
    assert mixed.count_drawn(position).tolist() == np.bincount(members, minlength=len(case.members)).tolist()


# ------------------------------------------------------------------ schedules


def _told(schedule: Schedule) -> dict[int, list[tuple[int, int, int]]]:
    """Chunk -> (pass, first, last) of its entries."""
    told: dict[int, list[tuple[int, int, int]]] = {}
    rows = (schedule.chunk.tolist(), schedule.passes.tolist(), schedule.first.tolist(), schedule.last.tolist())
    for chunk, *use in zip(*rows, strict=True):
        told.setdefault(chunk, []).append((use[0], use[1], use[2]))
    return told


def _covered(plan: RankPlan, begin: int, end: int) -> bool:
    """Whether each use is inside an entry of its chunk: one of its own pass, or one of the whole run."""
    told = _told(plan.schedule(begin, end))
    for number in range(begin, end):
        chunks, passes = plan.order.chunks(plan.batch(number).ordinals)
        for chunk, own in set(zip(chunks.tolist(), passes.tolist(), strict=True)):
            entries = [use for use in told.get(chunk, []) if use[0] == own or use[1:] == (begin, end - 1)]
            if not any(first <= number <= last for _, first, last in entries):
                return False
    return True


@QUICK
@given(cases(), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_a_schedule_covers_every_use(case: Case, x: int, y: int) -> None:
    """The schedule of a mix covers every use of a chunk, for whole epochs, parts of them and any rank,
    and after a shifted start.
    """
    mixed = case.order(x % EPOCHS)
    worlds = [ranks for ranks in range(1, case.batch + 1) if case.batch % ranks == 0]
    world = worlds[x % len(worlds)]
    start = x % mixed.samples if y % 2 else 0
    plan = RankPlan(mixed, case.batch, world, y % world, start=start)
    begin, end = sorted((x % (plan.batches + 1), y % (plan.batches + 1)))
    assert _covered(plan, 0, plan.batches)
    assert _covered(plan, begin, end)


# ------------------------------------------------------------------ going on with a changed mix


@pytest.mark.slow
@QUICK
@given(cases(), cases(), st.integers(1, 3))
def test_a_changed_mix_goes_on_fairly_at_the_end_of_an_epoch(case: Case, other: Case, epochs: int) -> None:
    """A mix whose weights and batching change after an epoch uses all samples equally or once more over both jobs."""
    uses = Uses(case)
    for epoch in range(epochs):
        mixed = case.order(epoch)
        uses.add_epoch(mixed, mixed.samples)
    said = {name: other.said[name] for name in ("batching", "seed")}
    said["weights"] = {name: 0.1 + (i * 7 + epochs) % 5 for i, name in enumerate(case.names)}
    saved = State(case.spec, epochs - 1, case.order(epochs - 1).samples, case.batch).to_dict()
    spec = adopt(saved, request(case.names, **said), case.members, case.batch).spec
    assert spec.origin_epoch == epochs
    for epoch in range(epochs, epochs + 3):
        mixed = order(spec, case.members, epoch)
        uses.add_epoch(mixed, mixed.samples)
        assert uses.are_fair()


@QUICK
@given(cases(), st.integers(0, 1 << 30))
def test_a_changed_mix_goes_on_in_the_middle_of_an_epoch(case: Case, place: int) -> None:
    """A mix that goes on in mid-epoch repeats only samples used after the place that is taken over:
    at most 4 per lane and member if stratified.
    """
    mixed = case.order(0)
    position = place % mixed.samples // case.batch * case.batch
    uses = Uses(case)
    uses.add_epoch(mixed, position)
    saved = State(case.spec, 0, position, case.batch).to_dict()
    spec = adopt(saved, request(case.names, **case.said), case.members, case.batch).spec
    beyond = mixed.count_drawn(position) - [member.origin for member in spec.members]
    assert beyond.min() >= 0
    assert case.said["batching"] != "stratified" or beyond.max() <= 4 * case.spec.lanes
    changed = order(spec, case.members, spec.origin_epoch)
    uses.add_epoch(changed, changed.samples)
    for counts, again in zip(uses.counts, beyond.tolist(), strict=True):
        assert np.clip(counts - counts.min() - 1, 0, None).sum() <= again
