"""Simulated jobs: what follows from sizes, rates and times alone comes out exactly.
Policy, order and manifest are the real ones; link, workers and steps are simulated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from streamer.batches.samples.opened import OpenedDataset
from streamer.config import format_bytes, parse_bytes
from streamer.errors import CacheFullError, ConfigError
from streamer.formats import detect
from streamer.indexing.build import build
from streamer.manifest.model import Extent, ObjectRecord
from streamer.tools.planning.model import EngineCost, EpochPlan, Link, Prices, Setting, TrainingJob
from streamer.tools.planning.simulate import simulate

OBJECTS = 1600
OBJECT_BYTES = 100_000
DATA_BYTES = OBJECTS * OBJECT_BYTES
# 6.4 MB in 0.05 s: 128 MB/s.
JOB = TrainingJob(batch_size=64, step_seconds=0.05, workers=2, epochs=2)
FAST = Link(bytes_per_second=1e9)


class Listing:
    """Stands for a store of raw objects: it lists them and cannot be read."""

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        yield [ObjectRecord(f"{url}{number:05}.jpg", OBJECT_BYTES, f"etag:{number:032x}") for number in range(OBJECTS)]

    async def read(self, extent: Extent) -> bytes:
        raise AssertionError("the listing is enough")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> OpenedDataset:
    """Builds the manifest of 1,600 listed objects of 100 kB."""
    store, folder = Listing(), tmp_path_factory.mktemp("manifests")
    return OpenedDataset(
        asyncio.run(build("s3://b/raw/", folder, lister=store, reader=store, choose_format=detect.chooser("auto"))),
        None,
    )


def setting(job: TrainingJob = JOB, link: Link = FAST, share: float = 1.2) -> Setting:
    return Setting(job=job, link=link, cache_bytes=int(share * DATA_BYTES))


def test_what_fits_is_fetched_once(data: OpenedDataset) -> None:
    """A dataset that fits the cache is fetched once, with a request for each object, and later epochs do not wait."""
    plan = simulate(data, setting())
    cold, *warm = plan.epochs
    assert (cold.fetched_bytes, cold.requests, cold.hit_share) == (DATA_BYTES, OBJECTS, 0.0)
    assert [(epoch.fetched_bytes, epoch.requests, epoch.hit_share) for epoch in warm] == [(0, 0, 1.0)]
    assert [epoch.waiting_share for epoch in warm] == [0.0]
    assert warm[0].seconds == pytest.approx(-(-OBJECTS // 64) * 0.05)


def test_a_cache_of_half_keeps_half_less_what_passes_through(data: OpenedDataset) -> None:
    """A cache of half the data hits between (C - S) / D and C / D of later epochs, as the policy promises."""
    plan = simulate(data, setting(share=0.5))
    assert len(plan.epochs) > 1
    for epoch in plan.epochs[1:]:
        assert 0.40 < epoch.hit_share < 0.5
        assert epoch.fetched_bytes == pytest.approx((1 - epoch.hit_share) * DATA_BYTES, rel=0.01)


def test_a_slow_link_sets_the_time_of_the_epoch(data: OpenedDataset) -> None:
    """A slow link sets the time of an epoch: 160 MB over 50 MB/s are 3.2 s, of which the steps take 1.25 s."""
    cold = simulate(data, setting(link=Link(bytes_per_second=50e6))).epochs[0]
    assert cold.seconds == pytest.approx(3.2, rel=0.1)
    assert cold.waiting_share == pytest.approx(1 - 1.25 / 3.2, abs=0.05)


def test_the_window_of_requests_limits_small_objects(data: OpenedDataset) -> None:
    """The window limits small objects: 16 requests of 0.1 s each are 160 objects per second on any link."""
    link = Link(bytes_per_second=10e9, first_byte_seconds=0.1, connection_bytes_per_second=1e12, requests=16)
    cold = simulate(data, setting(link=link)).epochs[0]
    assert cold.seconds == pytest.approx(OBJECTS / 160, rel=0.05)


@pytest.mark.parametrize(("processes", "seconds"), [(0, 0.2512), (1, 0.2512), (2, 0.1256), (8, 0.03728)])
def test_the_cores_of_the_engine_limit_a_fast_link(data: OpenedDataset, processes: int, seconds: float) -> None:
    """The engine's cores limit a fast link: 1,600 objects of 100 kB take one core 0.25 s, eight processes 0.04 s."""
    link = Link(bytes_per_second=1e12, first_byte_seconds=1e-6, connection_bytes_per_second=1e12)
    slow = Setting(
        job=replace(JOB, step_seconds=0.0),
        link=link,
        cache_bytes=2 * DATA_BYTES,
        engine=EngineCost(fetch_processes=processes),
    )
    assert slow.engine.seconds(DATA_BYTES, OBJECTS) == pytest.approx(seconds)
    assert simulate(data, slow).epochs[0].seconds == pytest.approx(seconds, rel=0.1)  # without the first batch


def test_slow_workers_set_the_time_of_the_epoch(data: OpenedDataset) -> None:
    """Slow workers set the time of an epoch: two of 5 ms a sample make a batch of 64 every 0.16 s."""
    plan = simulate(data, setting(replace(JOB, sample_seconds=0.005)))
    assert len(plan.epochs) > 1
    for epoch in plan.epochs[1:]:
        assert epoch.seconds == pytest.approx(-(-OBJECTS // 64) * 0.16, rel=0.05)
        assert epoch.waiting_share == pytest.approx(1 - 0.05 / 0.16, abs=0.03)


def test_nodes_share_the_data(data: OpenedDataset) -> None:
    """Four nodes with a cache of a quarter each fetch the data once, and a chunk on the cut of two lanes twice."""
    job = replace(JOB, nodes=4, ranks_per_node=2, batch_size=8)
    plan = simulate(data, setting(job, share=0.32))
    assert plan.epochs[0].fetched_bytes == pytest.approx(DATA_BYTES, rel=0.06)
    assert plan.epochs[1].hit_share > 0.95


def test_data_in_order_is_read_chunk_by_chunk(data: OpenedDataset) -> None:
    """A cache for a few chunks suffices for data in order, and is too small for a shuffle."""
    small = setting(share=0.052)
    with pytest.raises(CacheFullError):
        simulate(data, small)
    plan = simulate(data, replace(small, job=replace(JOB, shuffle=False)))
    assert plan.epochs[0].fetched_bytes == DATA_BYTES


def test_many_epochs_are_counted(data: OpenedDataset) -> None:
    """Every epoch of a simulation is counted, also those that the engine's own statistics have forgotten."""
    plan = simulate(data, setting(replace(JOB, epochs=10, batch_size=400, step_seconds=0.3)))
    assert [epoch.hit_share for epoch in plan.epochs] == [0.0] + [1.0] * 9


def test_a_cache_below_the_open_chunks_is_refused(data: OpenedDataset) -> None:
    """A cache below the open chunks raises CacheFullError, and the limit that the error proposes is enough."""
    small = setting(share=0.01)
    with pytest.raises(CacheFullError, match=r"besides \S+ \S+ of manifests and catalog") as caught:
        simulate(data, small)
    assert str(caught.value).startswith(f"a cache of {format_bytes(small.cache_bytes)} is too small")
    least = parse_bytes(str(caught.value).partition("at least ")[2])
    assert simulate(data, replace(small, cache_bytes=least)).epochs
    with pytest.raises(CacheFullError):
        simulate(data, replace(small, cache_bytes=least * 9 // 10))


@pytest.mark.parametrize("changes", [{"workers": 0}, {"batch_size": 0}, {"epochs": 0}, {"step_seconds": -1}])
def test_impossible_numbers_are_refused(data: OpenedDataset, changes: dict[str, int]) -> None:
    """Impossible numbers of a job raise ConfigError with their names."""
    (name,) = changes
    with pytest.raises(ConfigError, match=f"{name}={changes[name]}"):
        simulate(data, setting(replace(JOB, **changes)))


def test_the_price_is_of_bytes_and_requests() -> None:
    """The price of an epoch is that of its bytes and its requests."""
    epoch = EpochPlan(fetched_bytes=2 * 10**9, requests=500_000, hit_share=0.0, seconds=1.0, waiting_share=0.0)
    assert epoch.price(Prices(per_gb=0.02, per_million_gets=0.4)) == pytest.approx(0.24)
