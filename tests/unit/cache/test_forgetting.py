"""Versions of a dataset that come and go for months: policy and catalog know only of what is cached."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from streamer.cache.catalog import Catalog
from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.policy.answers import Admit
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import charge
from streamer.config import CacheConfig

LENGTH = 4096
CHUNKS = 20
ROOM = 12


def key_of(version: int, chunk: int) -> bytes:
    """Returns the key of a chunk in a version; each version changes one chunk of the last one."""
    born = version - (version - chunk) % CHUNKS
    return f"{chunk:03}-{max(0, born):05}".encode().ljust(16, b"\0")


def open_version(policy: CachePolicy, version: int) -> str:
    """Adds a version, opens a session on it and starts its epoch; returns the session."""
    policy.add_dataset(f"v{version}", [LENGTH] * CHUNKS, [key_of(version, chunk) for chunk in range(CHUNKS)])
    policy.open_session(f"s{version}", "job", f"v{version}", charge(LENGTH), charge(LENGTH))
    policy.start_epoch(f"s{version}", range(CHUNKS))
    return f"s{version}"


def read_all(policy: CachePolicy, session: str) -> int:
    """Reads every chunk once, and returns how many were hits."""
    hits = 0
    for chunk in range(CHUNKS):
        policy.look_ahead(session, chunk)
        answer = policy.need(session, chunk, blocking=True)
        if isinstance(answer, Admit):
            policy.publish(answer.key)
        hits += not isinstance(answer, Admit)
        assert policy.open(session, chunk)
        policy.release(session, chunk)
    return hits


def test_a_job_that_goes_through_many_versions_keeps_its_hits() -> None:
    """A job that reads 200 versions in turn keeps its hits, and the table stays as large as for two versions."""
    policy = CachePolicy(ROOM * charge(LENGTH))
    hits = []
    for version in range(200):
        session = open_version(policy, version)
        hits.append(read_all(policy, session))
        policy.close_session(session)
        policy.forget_datasets({f"v{version}"})
    table = policy._table
    assert len(table.groups) <= 3
    assert len(table) <= 2 * CHUNKS + ROOM
    assert min(hits[5:]) >= ROOM - 5
    assert len({bytes(key) for key in table.keys}) == len(table), "a row that is used again loses its old name"


def test_a_version_that_a_session_is_on_stays() -> None:
    """`forget_datasets` keeps a version that a session has open, also when its manifest is gone from the disk."""
    policy = CachePolicy(ROOM * charge(LENGTH))
    session = open_version(policy, 0)
    assert policy.forget_datasets(set()) == []
    read_all(policy, session)
    policy.close_session(session)
    assert policy.forget_datasets(set()) == ["v0"]
    assert policy.forget_datasets(set()) == []


def test_chunks_of_a_forgotten_version_are_hits_and_go_first() -> None:
    """Cached chunks of a forgotten version are still hits, and are evicted before those of other versions."""
    policy = CachePolicy(3 * CHUNKS * charge(LENGTH))
    for version in (0, 1000):
        session = open_version(policy, version)
        read_all(policy, session)
        policy.close_session(session)
    assert policy.forget_datasets({"v1000"}) == ["v0"]
    assert policy.is_local(key_of(0, 3))
    again = open_version(policy, 0)
    policy.look_ahead(again, 3)
    assert not isinstance(policy.need(again, 3), Admit)
    policy.close_session(again)
    policy.forget_datasets({"v1000"})
    freed = policy.set_limit(CHUNKS * charge(LENGTH))
    assert set(freed.victims) == {key_of(0, chunk) for chunk in range(CHUNKS)}
    assert all(policy.is_local(key_of(1000, chunk)) for chunk in range(CHUNKS))


def test_more_versions_than_two_bytes_can_count() -> None:
    """The table holds chunks of more than 32,767 versions, since a folder may hold chunks of 40,000."""
    policy = CachePolicy(40_100 * charge(LENGTH))
    policy._table.groups += [policy._table.group("x")] * 40_000
    policy.local([key_of(7, 7)], [LENGTH], "last")
    assert policy._table.owner[0] == 40_001


async def test_when_a_forgotten_dataset_was_used_is_not_kept(tmp_path: Path) -> None:
    """The catalog drops a forgotten dataset's last use, at once or at the next start, unless it has chunks."""
    config = CacheConfig(directory=tmp_path / "cache", limit_bytes=8 << 20)
    async with ChunkCache(config) as cache:
        await cache.publish(bytes(range(16)), [b"x" * 10], np.array([0, 10]), dataset="kept")
        for number in range(50):
            cache.use(f"old{number}")
            cache.forget(f"old{number}")
        cache.use("again")
        cache.forget("again")
        cache.use("again")
    assert set(used_in(config)) == {"kept", "again"}
    async with ChunkCache(config):
        pass
    assert set(used_in(config)) == {"kept"}, "of the other nothing was left to know"


def used_in(config: CacheConfig) -> dict[str, float]:
    return Catalog(config.directory / "catalog")._read().used
