"""Growing datasets of any size, `reuse` and epoch on an engine that brings everything: no batch waits for ever."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.batches.rows.order_rows import SampleRows
from streamer.batches.samples.maker import SampleRules
from streamer.batches.samples.opened import MemberRecipe, Members
from streamer.batches.samples.recipe import SampleRecipe
from streamer.batches.skipping import SkipRules
from streamer.client.session import Session
from streamer.config import RankConfig
from streamer.engine.session_progress import SessionProgress
from streamer.errors import BrokenError, CacheFullError
from streamer.loader.kinds.growing.growth import Growth
from streamer.loader.kinds.growing.ordering import GrowingOrdering
from streamer.loader.kinds.growing.session import CohortFeed, GrowingSession
from streamer.loader.kinds.step_session import Identity
from streamer.loader.members.connections import EngineConnections
from streamer.loader.rank.rank_stream import RankStream
from streamer.order.growing import Cohorts, Growing
from streamer.order.spec import OrderSpec
from streamer.order.state import State
from streamer.wire.messages import PROTOCOL, Advance, Extend, Message, OpenSession, Welcome
from streamer.wire.schedule import EpochSchedule

BLOCK = 55_000


class InstantEngine:
    """A connection to an engine to which each chunk comes within one look, in the order of the schedule.

    The session and its progress are those of the product; there is no socket between them. `opened` has the number of
    open uses of each chunk.

    Args:
        chunk_bytes: of each chunk.
        limit_bytes: of the cache.
    """

    def __init__(self, chunk_bytes: np.ndarray, limit_bytes: int) -> None:
        self.welcome = Welcome(PROTOCOL, "1", 1, "/", "id", limit_bytes=limit_bytes)
        self.closed = False
        self._chunk_bytes = chunk_bytes
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._session: Session | None = None
        self.progress = SessionProgress(chunk_bytes)
        self.opened = Counter[int]()

    def open_session(self, spec: OpenSession, cache_full_hint: str = "") -> Session:
        self.progress = SessionProgress(self._chunk_bytes)
        self.opened.clear()
        self._session = Session(self, msgspec.structs.replace(spec, session=1))
        return self._session

    def post(self, message: Message, quietly: bool = False) -> None:
        if isinstance(message, Extend):
            self.progress.extend(EpochSchedule.read(message), message.complete)
        elif isinstance(message, Advance):
            self.progress.advance(message.done, message.want)

    def post_all(self, messages: Iterator[Message]) -> None:
        for message in messages:
            self.post(message)

    def forget(self, session: Session) -> None:
        self._session = None

    def fileno(self) -> int:
        return self._event

    def pump(self, timeout_seconds: float = 0.0) -> None:
        progress, session = self.progress, self._session
        assert session is not None
        self.opened.subtract(use.chunk for use in progress.take_done())
        while (use := progress.next_use()) is not None:
            progress.hold(use)
        while (use := progress.take_request()) is not None:
            progress.mark_local(use.chunk)
        for use in progress.openable():
            progress.mark_open(use)
            self.opened[use.chunk] += 1
        session.handle_ready(progress.last_ready_step(), 0)

    def shut_down(self) -> None:
        self.closed = True

    def close(self) -> None:
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


class Case(msgspec.Struct, frozen=True):
    """A growing dataset of a rank; `cache_share`: of all data; `grow`: bytes, or "auto"."""

    chunks: int
    chunk_samples: int
    reuse: int
    epoch_samples: int
    batch: int
    lanes: int = 1
    cache_share: float = 1000.0
    grow: str | int = "auto"
    world: int = 1
    rank: int = 0


@contextlib.contextmanager
def prepared(case: Case) -> Iterator[tuple[RankStream, InstantEngine]]:
    """The rank's side of a case, and its engine."""
    samples = np.full(case.chunks, case.chunk_samples, np.int64)
    sizes = samples * BLOCK
    spec = OrderSpec("x" * 32, 0, "block", case.lanes, 4 * case.lanes)
    recipe = SampleRecipe(
        members=(MemberRecipe(manifest_path=Path("/"), selection=None, rules=SampleRules()),),
        spec=spec,
        rank=case.rank,
        world_size=case.world,
        global_batch=case.batch,
        last_batch="fill",
        roots=(),
    )
    manifest = SimpleNamespace(digest="x" * 32, chunk_local_bytes=sizes, chunks=case.chunks, samples=int(samples.sum()))
    data = SimpleNamespace(
        manifest=manifest, samples=manifest.samples, order_samples=samples, cohorts=lambda of: Cohorts(of, samples)
    )
    data.joins, data.rows, data.order_first = (), SampleRows(), np.append(0, np.cumsum(samples))
    engine = InstantEngine(sizes, int(case.cache_share * sizes.sum()))
    identity = Identity(
        rank_config=RankConfig(rank=case.rank, world_size=case.world),
        stream="",
        skip_rules=SkipRules(),
        options=(b"{}",),
    )
    growing = Growing(case.reuse, case.epoch_samples, case.grow)
    try:
        connections = EngineConnections(lambda: engine)
        members = Members([data])
        growth = Growth(growing, spec, members, identity.rank_config, global_batch=case.batch)
        recipe = msgspec.structs.replace(recipe, spec=growth.spec)
        yield RankStream(connections, recipe, members, identity, GrowingOrdering(growth)), engine
    finally:
        engine.close()


def consume(made: RankStream, session: GrowingSession, start: tuple[int, int], steps: int, ahead: int) -> None:
    """Reads batches in order, as the loader's feeder does: up to `ahead` of them are asked for before the first."""
    per_epoch = made.plan(0).batches
    first = start[0] * per_epoch + start[1]
    asked = 0
    for step in range(steps):
        while asked <= min(step + ahead, steps - 1):
            assert session.step_of(*divmod(first + asked, per_epoch)) == asked
            session.want(asked + ahead)
            session.pump()
            if session.ready < asked:
                break
            asked += 1
        session.step_of(*divmod(first + step, per_epoch))
        for _ in range(1000):
            session.want(step)
            if session.ready >= step:
                break
            session.pump()
        assert session.ready >= step, repr(session)
        numbers = [of[0] for of in session.rounds(step)]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert len(made.ordinals(*divmod(first + step, per_epoch))) == made.local_batch
        session.finish(step + 1)


@contextlib.contextmanager
def too_small(engine: InstantEngine) -> Iterator[None]:
    """Allows the refusal of rounds that take more than the whole cache."""
    try:
        yield
    except CacheFullError as error:
        if error.details["live_bytes"] <= engine.welcome.limit_bytes:
            raise


cases = st.builds(
    Case,
    chunks=st.integers(1, 90),
    chunk_samples=st.integers(1, 6),
    reuse=st.integers(1, 6),
    epoch_samples=st.integers(1, 400),
    batch=st.integers(1, 60),
    lanes=st.sampled_from([1, 1, 2, 3]),
    cache_share=st.sampled_from([0.3, 0.9, 1.1, 2.0, 1000.0]),
    grow=st.sampled_from(["auto", "auto", 10 * BLOCK, 40 * BLOCK]),
).filter(lambda case: case.chunks * case.chunk_samples >= case.lanes)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(cases, st.sampled_from([1, 5, 8]), st.integers(0, 30))
@example(Case(chunks=64, chunk_samples=1, reuse=3, epoch_samples=60, batch=10), 8, 5)
@example(Case(chunks=64, chunk_samples=1, reuse=4, epoch_samples=60, batch=12), 8, 0)
@example(Case(chunks=64, chunk_samples=1, reuse=2, epoch_samples=60, batch=10), 1, 0)
@example(Case(chunks=64, chunk_samples=1, reuse=3, epoch_samples=60, batch=400), 8, 0)
def test_every_batch_becomes_ready_when_those_before_it_are_consumed(case: Case, ahead: int, resumed: int) -> None:
    """A batch of a growing dataset becomes ready once those before it are consumed, in caches of any size.
    Runs go through several passes, from the first batch and from a later one.
    """
    with prepared(case) as (made, engine), too_small(engine):
        steps = min(max(12, -(-3 * case.chunks * case.chunk_samples // case.batch)), 200)
        for first, count in ((0, min(resumed, steps)), (min(resumed, steps), steps)):
            start = divmod(first, made.plan(0).batches)
            with contextlib.closing(made.session(*start)) as session:
                consume(made, session, start, count, ahead)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_ready_batch_of_a_later_epoch_has_its_chunks_after_a_resume(rank: int) -> None:
    """A ready batch has all its chunks open after a resume, also inside a round that lasts beyond the epoch.

    Regression: epochs of 240 samples went on at 18 with batches of 12, of which the last one is not whole. The chunks
    of later epochs were looked up as if batches went on without a gap, so a batch was ready without those of lane 4.
    """
    case = Case(120, 6, reuse=2, epoch_samples=240, batch=12, lanes=8, grow=40 * BLOCK, world=2, rank=rank)
    with prepared(case) as (made, engine):
        per_pass = made.ordering.growth.log.cohorts.per_pass
        state = State(msgspec.structs.replace(made.spec, admitted=(per_pass,)), 0, 18, 10)
        assert made.resume(state.to_dict()) == (0, 1)
        places = [(epoch, batch) for epoch in range(3) for batch in range(20)][1:]
        found = set[int]()
        with contextlib.closing(made.session(0, 1)) as session:
            for step, (epoch, batch) in enumerate(places):
                assert session.step_of(epoch, batch) == step
                session.wait(step, 60)
                chunks = made.plan(epoch).order.chunks(made.ordinals(epoch, batch))[0].tolist()
                assert all(engine.opened[chunk] > 0 for chunk in chunks), (epoch, batch, chunks)
                found.update(chunks)
                session.finish(step + 1)
        assert len(found) > 60


class LateOffers:
    """Stands for the other ranks of a job: they have as much as this one, and say so at every tenth look."""

    looks = 0

    def agree_on(self, number: int, cohorts: int) -> int | None:
        self.looks += 1
        return None if self.looks % 10 else cohorts


def test_a_batch_waits_for_the_other_ranks_and_no_longer() -> None:
    """A session that waits for other ranks asks to be polled without a message, and `finish` looks for their offers."""
    with prepared(Case(chunks=64, chunk_samples=1, reuse=3, epoch_samples=60, batch=10)) as (made, _):
        offers = made.ordering.growth._offers = LateOffers()
        with contextlib.closing(made.session(0, 0)) as session:
            assert session.poll_seconds is None
            waited = 0
            for step in range(40):
                assert session.step_of(*divmod(step, 6)) == step
                session.want(step)
                session.pump()
                if session.ready < step and session.poll_seconds:
                    waited += 1
                    looks = offers.looks
                    session.finish(step)
                    assert offers.looks == looks + 1
                session.wait(step, 60)
                session.finish(step + 1)
            assert waited > 3


def test_a_batch_that_nobody_will_bring_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose cohorts were never asked for raises BrokenError with the cohorts that it needs."""
    extend = CohortFeed.extend
    with prepared(Case(chunks=64, chunk_samples=1, reuse=3, epoch_samples=60, batch=10)) as (made, _):
        monkeypatch.setattr(CohortFeed, "extend", lambda feed, end, room: extend(feed, min(end, 64), room))
        with (
            contextlib.closing(made.session(0, 0)) as session,
            pytest.raises(BrokenError, match=r"for ever: its rounds need cohorts up to 80, .* up to 64 .* up to 64;"),
        ):
            consume(made, session, (0, 0), 40, 1)


def test_a_session_that_cannot_begin_gives_its_connection_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session whose start fails gives its connection back once.
    Regression: it was given back twice, to be taken by two users.
    """
    with prepared(Case(chunks=64, chunk_samples=1, reuse=3, epoch_samples=60, batch=10)) as (made, _):
        with monkeypatch.context() as broken:
            broken.setattr(GrowingSession, "_extend", lambda session: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                made.session(0, 0)
        assert repr(made._connections) == "EngineConnections(1, 1 free)"
        made.session(0, 0).close()
