"""The order on arbitrary manifests and geometries, against docs/order.md written out sample by sample."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.order import OrderSpec, RankPlan, Schedule, State, worker_batches
from streamer.order.epoch import EpochOrder
from streamer.order.hashing import fold, permute
from streamer.order.plan import LastBatch
from streamer.order.spec import Cut

QUICK = settings(suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Geometry:
    """A manifest and everything that can be chosen about an epoch of it."""

    sizes: tuple[int, ...]
    spec: OrderSpec
    epoch: int
    global_batch: int
    worlds: tuple[int, ...]
    last_batch: LastBatch

    @property
    def samples(self) -> int:
        return sum(self.sizes)

    def order(self) -> EpochOrder:
        words = np.array([_word(chunk) for chunk in range(len(self.sizes))], np.uint64)
        return EpochOrder(self.spec, np.array(self.sizes, dtype=np.int64), self.epoch, chunk_words=words)

    def plans(self, world: int, start: int = 0) -> list[RankPlan]:
        order = self.order()
        last = self.last(world)
        return [RankPlan(order, self.global_batch, world, r, last, start=start) for r in range(world)]

    def last(self, world: int) -> LastBatch:
        """Several ranks fill what one leaves short."""
        return "fill" if self.last_batch == "short" and world > 1 else self.last_batch


_sizes = st.one_of(
    st.lists(st.integers(0, 12), min_size=1, max_size=40),
    st.lists(st.sampled_from([0, 1, 2, 60]), min_size=1, max_size=25),
    st.lists(st.just(1), min_size=1, max_size=80),
    st.integers(1, 300).map(lambda n: [n]),
).filter(lambda sizes: sum(sizes) > 0)


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    sizes = tuple(draw(_sizes))
    batch = draw(st.one_of(st.integers(1, 40), st.sampled_from([24, 48, 64, 96, 120, 512])))
    seed = draw(st.sampled_from([0, 17, (1 << 64) - 1]) | st.integers(0, 1 << 63))
    worlds = tuple(r for r in range(1, 25) if batch % r == 0)
    spec, last_batch = draw(_specs(sizes, batch, seed)), draw(st.sampled_from(get_args(LastBatch)))
    return Geometry(sizes, spec, draw(st.integers(0, 3)), batch, worlds, last_batch)


def _specs(sizes: tuple[int, ...], batch: int, seed: int) -> st.SearchStrategy[OrderSpec]:
    array = np.array(sizes, dtype=np.int64)
    cuts = st.sampled_from(get_args(Cut))
    chosen = st.builds(
        OrderSpec, st.just("m"), st.just(seed), st.just("block"), st.integers(1, 13), st.integers(1, 100), cuts
    )
    plain = st.sampled_from([True, False]).map(lambda shuffle: OrderSpec.auto("m", array, batch, seed, shuffle))
    return st.one_of(chosen, chosen, plain)


# ------------------------------------------------------------------ docs/order.md, sample by sample


def _word(chunk: int) -> int:
    """The first bytes of a chunk's key."""
    return fold(99, chunk)


def _bij(i: int, size: int, *key: int) -> int:
    keys = np.array([fold(*key)], dtype=np.uint64)
    return int(permute(np.array([i]), np.array([size]), keys)[0])


def _lane_pieces(g: Geometry) -> list[list[list[int]]]:
    """Per lane the ordinals of its pieces, in the order of the epoch."""
    spec, first = g.spec, np.concatenate([[0], np.cumsum(g.sizes)]).tolist()
    cut = {"fixed": (spec.seed, 0), "redrawn": (spec.seed, 0, g.epoch), "by_key": (0, 5)}[spec.cut]
    chunks = (c for c in range(len(g.sizes)) if g.sizes[c])
    chunks = sorted(chunks, key=lambda c: fold(*cut, _word(c) if spec.cut == "by_key" else c))
    flat = [(c, first[c] + i) for c in chunks for i in range(g.sizes[c])]
    lanes, done = [], 0
    for lane in range(spec.lanes):
        length = g.samples // spec.lanes + (lane < g.samples % spec.lanes)
        held = flat[done : done + length]
        done += length
        mine = sorted({c for c, _ in held}, key=lambda c: fold(spec.seed, 1, g.epoch, c))
        lanes.append([[o for c, o in held if c == chunk] for chunk in mine])
    return lanes


def _lane_order(g: Geometry, lane: int, pieces: list[list[int]]) -> list[int]:
    """The ordinals of a lane as the epoch draws them."""
    spec, k = g.spec, max(1, g.spec.window // g.spec.lanes)
    groups: dict[int, list[int]] = {}
    for j, piece in enumerate(pieces):
        size, share = len(piece), min(k, j + 1)
        for t in range(share):
            run = range(-(-size * t // share), -(-size * (t + 1) // share))
            drawn = [piece[_bij(i, size, spec.seed, 4, g.epoch, lane, j)] for i in run]
            groups.setdefault(j + t, []).extend(drawn)
    found = []
    for number in sorted(groups):
        group = groups[number]
        found += [group[_bij(i, len(group), spec.seed, 3, g.epoch, lane, number)] for i in range(len(group))]
    return found


def _whole_order(g: Geometry) -> list[int]:
    if g.spec.shuffle == "none":
        return list(range(g.samples))
    lanes = [_lane_order(g, lane, pieces) for lane, pieces in enumerate(_lane_pieces(g))]
    return [lanes[p % g.spec.lanes][p // g.spec.lanes] for p in range(g.samples)]


# ------------------------------------------------------------------ the epoch


@QUICK
@given(geometries())
def test_the_order_is_the_design_written_out(g: Geometry) -> None:
    """The vectorised order of a dataset equals the one made sample by sample."""
    assert g.order().ordinals(np.arange(g.samples)).tolist() == _whole_order(g)


@QUICK
@given(geometries())
def test_an_epoch_is_a_bijection(g: Geometry) -> None:
    """Each sample of an epoch has exactly one position."""
    found = g.order().ordinals(np.arange(g.samples))
    assert np.array_equal(np.sort(found), np.arange(g.samples))


@QUICK
@given(geometries(), st.lists(st.integers(0, 10_000), min_size=1, max_size=20))
def test_any_positions_can_be_asked_in_any_order(g: Geometry, picks: list[int]) -> None:
    """A fresh order answers scattered positions, also repeated ones, as the whole epoch does."""
    positions = np.array(picks) % g.samples
    assert np.array_equal(g.order().ordinals(positions), g.order().ordinals(np.arange(g.samples))[positions])


@QUICK
@given(geometries())
def test_at_most_k_pieces_are_open_in_a_lane(g: Geometry) -> None:
    """A lane has at most k chunks open at once, each from the first to the last draw of its piece."""
    if g.spec.shuffle == "none":
        return
    chunk_first = np.concatenate([[0], np.cumsum(g.sizes)])
    found = g.order().ordinals(np.arange(g.samples))
    for lane in range(min(g.spec.lanes, g.samples)):
        chunks = np.searchsorted(chunk_first, found[lane :: g.spec.lanes], side="right") - 1
        ends = [np.flatnonzero(chunks == c)[[0, -1]] for c in np.unique(chunks)]
        change = np.zeros(len(chunks) + 1, dtype=int)
        for first, last in ends:
            change[first] += 1
            change[last + 1] -= 1
        # Inside one group of the order, the piece that ends and the piece that begins may overlap.
        assert np.cumsum(change).max() <= g.spec.lane_window


# ------------------------------------------------------------------ ranks


@QUICK
@given(geometries())
def test_every_world_gets_the_same_global_batches_in_equal_steps(g: Geometry) -> None:
    """For each number of ranks that divides the global batch, all ranks have equally many batches.
    Batch g has together the positions [gB, gB+B), seated by lane.
    """
    batch, lanes = g.global_batch, g.spec.lanes
    for world in g.worlds:
        plans = g.plans(world)
        dropped, short = g.last(world) == "drop", g.last(world) == "short"
        assert {p.batches for p in plans} == {g.samples // batch if dropped else -(-g.samples // batch)}
        for number in range(plans[0].batches):
            seated = np.concatenate([p.batch(number).positions for p in plans])
            stop = min((number + 1) * batch, g.samples) if short else (number + 1) * batch
            assert seated.tolist() == sorted(range(number * batch, stop), key=lambda p: (p % lanes, p))


@QUICK
@given(geometries())
def test_all_ranks_together_see_each_sample_once(g: Geometry) -> None:
    """Unless the last batch is dropped, all ranks together see each sample once; repeats only fill, and are marked."""
    for world in g.worlds[-2:]:
        plans = g.plans(world)
        batches = [p.batch(i) for p in plans for i in range(p.batches)]
        assert sum(p.samples for p in plans) == sum(len(b.ordinals) for b in batches)
        masks = [p.find_repeats(i) for p in plans for i in range(p.batches)]
        assert all(np.array_equal(mask, b.repeated) for mask, b in zip(masks, batches, strict=True))
        fresh = [o for b in batches for o in b.ordinals[~b.repeated].tolist()]
        assert len(fresh) == len(set(fresh))
        whole = g.samples // g.global_batch * g.global_batch
        assert len(fresh) == (whole if g.last_batch == "drop" else g.samples)
        assert all(0 <= o < g.samples for b in batches for o in b.ordinals.tolist())
        repeats = sum(int(b.repeated.sum()) for b in batches)
        assert repeats == (-g.samples % g.global_batch if g.last(world) == "fill" else 0)


@QUICK
@given(geometries(), st.integers(0, 5))
def test_workers_of_a_plain_dataloader_restore_the_order(g: Geometry, workers: int) -> None:
    """W workers of a plain DataLoader, asked in turn, yield every batch once, in order, from any start."""
    batches = g.plans(g.worlds[-1])[0].batches
    many = max(1, workers)
    for start in {0, batches // 2}:
        queues = [iter(worker_batches(start, batches, w, many)) for w in range(many)]
        found = [next(queues[i % many]) for i in range(batches - start)]
        assert found == list(range(start, batches))
        assert all(next(q, None) is None for q in queues)


# ------------------------------------------------------------------ schedule


def _needs(plan: RankPlan, begin: int, end: int) -> dict[int, tuple[int, int]]:
    """Chunk -> first and last batch, by looking at every sample."""
    needs: dict[int, tuple[int, int]] = {}
    for number in range(begin, end):
        ordinals = plan.batch(number).ordinals
        for chunk in set((np.searchsorted(plan.order.chunk_first, ordinals, side="right") - 1).tolist()):
            first = needs.get(chunk, (number, number))[0]
            needs[chunk] = (first, number)
    return needs


def _told(schedule: Schedule) -> dict[int, tuple[int, int]]:
    rows = zip(schedule.chunk.tolist(), schedule.first.tolist(), schedule.last.tolist(), strict=True)
    return {chunk: (first, last) for chunk, first, last in rows}


@QUICK
@given(geometries(), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_a_schedule_covers_every_need(g: Geometry, x: int, y: int) -> None:
    """A rank's schedule covers every batch that needs a chunk, for whole epochs, parts of them, and a shifted start."""
    for world in g.worlds[-2:]:
        for plan in g.plans(world, start=x % g.samples)[:: max(1, world // 3)]:
            begin, end = sorted((x % (plan.batches + 1), y % (plan.batches + 1)))
            for low, high in ((0, plan.batches), (begin, end)):
                found = plan.schedule(low, high)
                told = _told(found)
                assert len(told) == len(found)
                assert np.all(np.diff(found.first) >= 0)
                assert all(low <= first <= last < high for first, last in told.values())
                for chunk, (first, last) in _needs(plan, low, high).items():
                    assert told[chunk][0] <= first <= last <= told[chunk][1]


@QUICK
@given(geometries())
def test_a_schedule_without_shuffle_is_exact(g: Geometry) -> None:
    """The schedule of an unshuffled epoch is exact, since a run of ordinals needs no bound."""
    plain = replace(g, spec=OrderSpec("m", 0, "none", 1, 1))
    for plan in plain.plans(plain.worlds[-1]):
        assert _told(plan.schedule()) == _needs(plan, 0, plan.batches)


# ------------------------------------------------------------------ resume


def _tail(g: Geometry, state: State, world: int) -> list[list[int]]:
    """The global batches that `world` ranks make after a resume, by position; "short": without repeats."""
    point = State.from_dict(state.to_dict()).resume(g.samples, g.global_batch, g.last_batch)
    if point.epoch != g.epoch:
        return []
    plans = g.plans(world, start=point.start)
    found = []
    for number in range(point.batch, plans[0].batches):
        parts = [p.batch(number) for p in plans]
        positions = np.concatenate([p.positions for p in parts])
        real = int((positions < g.samples).sum()) if g.last_batch == "short" else len(positions)
        order = np.argsort(positions)[:real]
        found.append(np.concatenate([p.ordinals for p in parts])[order].tolist())
    return found


@QUICK
@given(geometries(), st.integers(0, 1 << 20), st.data())
def test_a_resume_is_the_tail(g: Geometry, cut: int, data: st.DataObject) -> None:
    """After k batches, R' ranks go on with exactly the batches that R ranks would have had; so does a second resume."""
    world = data.draw(st.sampled_from(g.worlds))
    whole = _tail(g, State(g.spec, g.epoch, 0, g.global_batch), g.worlds[0])
    delivered = cut % (len(whole) + 1)
    for done in (delivered, delivered + (len(whole) - delivered) // 2):
        position = g.plans(world)[0].position(done)
        assert _tail(g, State(g.spec, g.epoch, position, g.global_batch), world) == whole[done:]


@QUICK
@given(geometries(), st.integers(1, 60), st.integers(0, 1 << 20))
def test_another_global_batch_goes_on_with_the_samples_left(g: Geometry, other: int, cut: int) -> None:
    """An epoch resumed with another global batch delivers, before and after the resume together, each sample once."""
    kept = replace(g, last_batch="fill" if g.last_batch == "drop" else g.last_batch)
    plan = kept.plans(1)[0]
    done = cut % (plan.batches + 1)
    state = State(g.spec, g.epoch, plan.position(done), g.global_batch)
    before = [o for i in range(done) for o in plan.batch(i).ordinals[~plan.batch(i).repeated].tolist()]
    changed = replace(kept, global_batch=other)
    point = state.resume(g.samples, other)
    after: list[int] = []
    if point.epoch == g.epoch:
        rest = changed.plans(1, start=point.start)[0]
        parts = [rest.batch(i) for i in range(point.batch, rest.batches)]
        after = [o for b in parts for o in b.ordinals[~b.repeated].tolist()]
    assert sorted(before + after) == list(range(g.samples))
