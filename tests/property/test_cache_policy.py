"""The policy as a state machine, against a dictionary of files that does exactly what it is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streamer.cache.policy.answers import Admit, Freed, Hit, Wait
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import charge
from streamer.errors import CacheFullError

DATASETS = {"a": 12, "b": 5, "c": 9}
SESSIONS = ("s0", "s1", "s2", "s3")
JOBS = ("j0", "j1")
BLOCK = 4096
SETTINGS = settings(stateful_step_count=60)


def key_of(dataset: str, chunk: int) -> bytes:
    """Dataset c is a new version of a: its first six chunks are the same bytes."""
    name = "a" if dataset == "c" and chunk < 6 else dataset
    return f"{name}{chunk}".encode().ljust(16, b"\0")


def length_of(chunk: int) -> int:
    return BLOCK * (1 + chunk % 3)


def cost_of(key: bytes) -> int:
    return charge(length_of(int(key.rstrip(b"\0")[1:])))


class Consumer:
    """What a session has asked for, as a plain model."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.ahead: list[int] = []
        self.open: list[int] = []


class Model:
    """The policy beside plain sets: files are a set of keys, fetches under way another."""

    def prepare(self, limit: int, found: set[int], settling: bool) -> None:
        self.limit = limit * (BLOCK + 1024)
        self.policy = CachePolicy(self.limit, settling=settling)
        self.files: set[bytes] = set()
        self.flying: set[bytes] = set()
        self.sessions: dict[str, Consumer] = {}
        self.files |= {key_of("a", chunk) for chunk in found}
        self.policy.local([key_of("a", chunk) for chunk in found], [length_of(chunk) for chunk in found], "a")
        self.unlink(self.policy.fit())
        assert self.held_bytes() <= self.limit
        for name in DATASETS:
            self.add(name)
        self.begin("s0", "j0", "a", 1)
        self.begin("s1", "j1", "a", 2)

    def unlink(self, freed: Freed) -> None:
        for key in freed.victims:
            assert key not in self.open_keys()
            self.files.remove(key)
        assert set(freed.promoted) <= self.files

    def open_keys(self) -> set[bytes]:
        return {key_of(one.dataset, chunk) for one in self.sessions.values() for chunk in one.open}

    def held_bytes(self) -> int:
        return sum(map(cost_of, self.files | self.flying))

    def begin(self, name: str, job: str, dataset: str, window: int) -> None:
        self.add(dataset)
        before = self.policy.statistics()
        try:
            freed = self.policy.open_session(name, job, dataset, window * BLOCK, window * BLOCK)
        except CacheFullError:
            assert self.policy.statistics() == before
            return
        self.sessions[name] = Consumer(dataset)
        self.unlink(freed)

    def add(self, dataset: str) -> None:
        chunks = range(DATASETS[dataset])
        self.policy.add_dataset(dataset, list(map(length_of, chunks)), [key_of(dataset, chunk) for chunk in chunks])

    def forget_datasets(self, known: set[str]) -> None:
        """What no session is on goes; no file does, and nothing is counted otherwise."""
        before = self.policy.statistics()
        gone = self.policy.forget_datasets(known)
        assert not set(gone) & (known | {one.dataset for one in self.sessions.values()})
        after = self.policy.statistics()
        assert (before.kept_bytes, before.transit_bytes) == (after.kept_bytes, after.transit_bytes)
        assert len(self.policy._table.groups) <= len(DATASETS) + 1

    def use_one(self, name: str, chunk: int, opens: bool) -> None:
        consumer = self.sessions[name]
        key = key_of(consumer.dataset, chunk)
        self.policy.look_ahead(name, chunk)
        consumer.ahead.append(chunk)
        try:
            answer = self.policy.need(name, chunk, blocking=True)
        except CacheFullError:
            return
        self.follow(key, answer, True)
        if isinstance(answer, Admit):
            self.flying.remove(key)
            self.files.add(key)
            self.unlink(self.policy.publish(key))
        if self.policy.open(name, chunk):
            consumer.ahead.remove(chunk)
            consumer.open.append(chunk)
            if not opens:
                consumer.open.remove(chunk)
                self.unlink(self.policy.release(name, chunk))

    def follow(self, key: bytes, answer: Hit | Admit | Wait, blocking: bool) -> None:
        assert answer.key == key
        if isinstance(answer, Hit):
            assert key in self.files
        elif isinstance(answer, Admit):
            assert key not in self.files | self.flying
            self.unlink(Freed(answer.victims))
            self.flying.add(key)
            assert self.held_bytes() <= self.limit
        else:
            assert answer.fetching == (key in self.flying)

    def release_one(self, name: str, random: np.random.Generator) -> None:
        consumer = self.sessions[name]
        if uses := consumer.open or consumer.ahead:
            chunk = int(random.choice(uses))
            uses.remove(chunk)
            self.unlink(self.policy.release(name, chunk))

    def books_agree_with_the_files(self) -> None:
        now = self.policy.statistics()
        assert now.kept_bytes + now.transit_bytes == self.held_bytes()
        assert now.open_bytes == sum(map(cost_of, self.open_keys()))
        assert now.kept_chunks + now.transit_chunks == len(self.files)
        assert now.fetching_chunks == len(self.flying)
        assert all(self.policy.is_local(key) for key in self.files)
        assert not any(self.policy.is_local(key) for key in self.flying)
        assert self.open_keys() <= self.files

    def the_limit_holds_but_for_what_cannot_leave(self) -> None:
        blocking = {key_of(one.dataset, chunk) for one in self.sessions.values() for chunk in one.ahead}
        stuck = sum(map(cost_of, self.open_keys() | self.flying | (blocking & self.files)))
        assert self.held_bytes() <= max(self.limit, stuck)

    def end(self) -> None:
        """Without sessions nothing is referenced, scheduled or open, and nothing is left in transit."""
        for key in list(self.flying):
            self.policy.drop_fetch(key)
        self.flying.clear()
        for name in list(self.sessions):
            del self.sessions[name]
            self.unlink(self.policy.close_session(name))
        now = self.policy.statistics()
        assert (now.transit_bytes, now.open_bytes, now.sessions, now.staging_bytes) == (0, 0, 0, 0)
        table = self.policy._table
        assert not table.referenced
        assert not table.open
        assert not table.scheduled.any()
        assert [group.kept_bytes for group in table.groups] == [
            int(table.cost[(table.state == 3) & (table.owner == group.index)].sum()) for group in table.groups
        ]


class PolicyMachine(Model, RuleBasedStateMachine):
    """The model's steps as rules."""

    @initialize(limit=st.integers(8, 24), found=st.sets(st.integers(0, 11)), settling=st.booleans())
    def start(self, limit: int, found: set[int], settling: bool) -> None:
        self.prepare(limit, found, settling)

    @precondition(lambda self: len(self.sessions) < len(SESSIONS))
    @rule(
        job=st.sampled_from(JOBS),
        dataset=st.sampled_from(sorted(DATASETS)),
        window=st.integers(0, 4),
    )
    def open_session(self, job: str, dataset: str, window: int) -> None:
        self.begin(min(set(SESSIONS) - set(self.sessions)), job, dataset, window)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def start_epoch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.sessions)))
        count = DATASETS[self.sessions[name].dataset]
        self.policy.start_epoch(name, sorted(data.draw(st.sets(st.integers(0, count - 1)))))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def look_ahead(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.sessions)))
        chunk = data.draw(st.integers(0, DATASETS[self.sessions[name].dataset] - 1))
        self.policy.look_ahead(name, chunk)
        self.sessions[name].ahead.append(chunk)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), chunks=st.lists(st.integers(0, 11), max_size=8), opens=st.booleans())
    def use(self, data: st.DataObject, chunks: list[int], opens: bool) -> None:
        """The usual way of chunks in one go, so that caches fill up within a few steps."""
        name = data.draw(st.sampled_from(sorted(self.sessions)))
        for chunk in chunks:
            self.use_one(name, chunk % DATASETS[self.sessions[name].dataset], opens)

    @precondition(lambda self: any(one.ahead for one in self.sessions.values()))
    @rule(data=st.data(), blocking=st.booleans())
    def need(self, data: st.DataObject, blocking: bool) -> None:
        names = sorted(name for name, one in self.sessions.items() if one.ahead)
        name = data.draw(st.sampled_from(names))
        consumer = self.sessions[name]
        chunk = data.draw(st.sampled_from(consumer.ahead))
        key = key_of(consumer.dataset, chunk)
        try:
            answer = self.policy.need(name, chunk, blocking=blocking)
        except CacheFullError:
            assert blocking
            assert not self.flying  # something under way would have meant: wait
            return
        self.follow(key, answer, blocking)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), good=st.booleans())
    def land(self, data: st.DataObject, good: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.flying)))
        self.flying.remove(key)
        if good:
            self.files.add(key)
            self.unlink(self.policy.publish(key))
        else:
            self.policy.drop_fetch(key)

    @precondition(lambda self: any(one.ahead for one in self.sessions.values()))
    @rule(data=st.data())
    def opened(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, one in self.sessions.items() if one.ahead)))
        consumer = self.sessions[name]
        chunk = data.draw(st.sampled_from(consumer.ahead))
        if self.policy.open(name, chunk):
            consumer.ahead.remove(chunk)
            consumer.open.append(chunk)
        else:
            assert key_of(consumer.dataset, chunk) not in self.files

    @precondition(lambda self: any(one.open or one.ahead for one in self.sessions.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, one in self.sessions.items() if one.open or one.ahead)))
        consumer = self.sessions[name]
        chunk = data.draw(st.sampled_from(consumer.open or consumer.ahead))
        (consumer.open or consumer.ahead).remove(chunk)
        self.unlink(self.policy.release(name, chunk))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def silence(self, data: st.DataObject) -> None:
        self.unlink(self.policy.silence(data.draw(st.sampled_from(sorted(self.sessions)))))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close_session(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.sessions)))
        del self.sessions[name]
        self.unlink(self.policy.close_session(name))

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """A file is found wrong; chunks that were open are no longer readable, their sessions ask again."""
        key = data.draw(st.sampled_from(sorted(self.files)))
        if key in self.open_keys():
            return
        self.files.remove(key)
        assert self.policy.forget(key)

    @rule(known=st.sets(st.sampled_from(sorted(DATASETS))))
    def forget_some_datasets(self, known: set[str]) -> None:
        self.forget_datasets(known)

    @rule(limit=st.integers(3, 60))
    def set_limit(self, limit: int) -> None:
        self.limit = limit * (BLOCK + 1024)
        self.unlink(self.policy.set_limit(self.limit))

    @rule()
    def settle(self) -> None:
        self.unlink(self.policy.settle())

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "policy"):
            self.books_agree_with_the_files()
            self.the_limit_holds_but_for_what_cannot_leave()

    def teardown(self) -> None:
        if hasattr(self, "policy"):
            self.end()


def test_the_policy_behaves_like_a_dictionary_of_files() -> None:
    """The cache policy keeps one file per chunk, keeps open chunks, respects its limit, and ends without references,
    whatever sessions do.
    """
    run_state_machine_as_test(PolicyMachine, settings=SETTINGS)


@pytest.mark.parametrize("seed", range(6))
def test_a_long_random_walk_keeps_the_books(seed: int) -> None:
    """The cache policy's accounts agree with the files in each of 2,000 random steps on a full cache,
    which reach states that short examples do not.
    """
    random = np.random.default_rng(seed)
    model = Model()
    model.prepare(int(random.integers(9, 20)), set(range(12)), settling=False)
    for _ in range(2000):
        walk(model, random)
        model.books_agree_with_the_files()
        model.the_limit_holds_but_for_what_cannot_leave()
    model.end()


def walk(model: Model, random: np.random.Generator) -> None:
    """One step, mostly uses and releases."""
    step = random.random()
    name = str(random.choice(sorted(model.sessions))) if model.sessions else ""
    if step < 0.02 and len(model.sessions) < len(SESSIONS):
        model.begin(
            min(set(SESSIONS) - set(model.sessions)), str(random.choice(JOBS)), str(random.choice(list("abc"))), 2
        )
    elif step < 0.03:
        model.forget_datasets(set(random.choice(list("abc"), 2).tolist()))
    elif not name:
        return
    elif step < 0.55:
        chunk = int(random.integers(DATASETS[model.sessions[name].dataset]))
        model.use_one(name, chunk, opens=random.random() < 0.5)
    elif step < 0.93:
        model.release_one(name, random)
    elif step < 0.97:
        count = DATASETS[model.sessions[name].dataset]
        model.policy.start_epoch(name, random.permutation(count)[: random.integers(count)])
    elif step < 0.98:
        model.unlink(model.policy.silence(name))
    elif step < 0.99:
        del model.sessions[name]
        model.unlink(model.policy.close_session(name))
    else:
        model.limit = int(random.integers(9, 20)) * (BLOCK + 1024)
        model.unlink(model.policy.set_limit(model.limit))
