"""Tests of the report made from two snapshots, and of bottlenecks on made-up figures; no loader runs."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from streamer.batches.causes import ALL, BatchTiming, Tail
from streamer.loader.stall.advice import Bottleneck, Findings, advise, diagnose, more_workers
from streamer.loader.stall.report import Snapshot, compare
from streamer.loader.stall.stats import EngineView, LoaderStats

MS = 1_000_000
BEFORE = Snapshot(
    stats=LoaderStats(batches=10, samples=80, step_seconds=1.0, waiting={"decode": 2.0}, respawns=1, occupancy=1.0),
    waits=Tail(10, [900 * MS] * 10),
    steps=Tail(10, [900 * MS] * 10),
    workers=4,
    cores=16,
)
AFTER = replace(
    BEFORE,
    stats=LoaderStats(
        batches=20,
        samples=160,
        step_seconds=2.0,
        waiting={"decode": 2.83, "read": 0.17},
        respawns=3,
        occupancy=2.0,
        ring_slots=8,
        ring_free=5,
    ),
    waits=Tail(20, [900 * MS] * 10 + [100 * MS] * 9 + [150 * MS]),
    steps=Tail(20, [900 * MS] * 10 + [100 * MS] * 10),
    timings=Tail(10, [BatchTiming(worker, 50 * MS, 5, 40 * MS, 10 * MS) for worker in (0, 1)] * 5),
)


def test_only_what_happened_between_counts():
    """Sums, mean, median and p99 of a report are those since the last one, not since the beginning."""
    found = compare(BEFORE, AFTER)
    assert (found.batches, found.samples, found.respawns) == (10, 80, 2)
    assert found.share == pytest.approx(0.5)
    assert found.wait.sum == pytest.approx(1.0)
    assert (found.wait.median, found.wait.p99) == (0.1, 0.15)
    assert found.step.mean == pytest.approx(0.1)
    assert found.waiting == pytest.approx({"decode": 0.83, "read": 0.17})
    assert found.occupancy == pytest.approx(3.0)


def test_the_line():
    """A report is one line: the bottleneck with its share, what to do, and the figures behind it."""
    line = str(compare(BEFORE, AFTER))
    assert line.startswith("input-bound (50% waiting): decode, decode 83%, read 17%; 4 more workers (num_workers=8; ")
    assert "\n" not in line
    for part in (
        "waiting 1 s (mean 100, median 100, p99 150 ms)",
        "ring 5 of 8 free",
        "respawned 2",
        "sample #5 40 ms",
    ):
        assert part in line


def test_not_input_bound():
    """A training that waits for less than 2 % of the time is not input-bound."""
    found = compare(BEFORE, replace(BEFORE, stats=replace(BEFORE.stats, step_seconds=2.0, waiting={"decode": 2.003})))
    assert found.headline == "not input-bound: 0.3% waiting"


def test_nothing_measured():
    """Two equal snapshots make a report that nothing was measured."""
    assert compare(BEFORE, BEFORE).headline == "nothing measured: 0.0% waiting"


def test_a_wait_that_goes_on_counts_once():
    """A trainer that stands still is reported while it waits, and the next report counts only the rest of the wait."""
    stuck = replace(AFTER, ongoing={"network": 9_000_000_000})
    first = compare(AFTER, stuck)
    assert first.bottleneck is Bottleneck.STORE
    assert first.waiting_seconds == pytest.approx(9.0)
    over = replace(AFTER, stats=replace(AFTER.stats, waiting={**AFTER.stats.waiting, "network": 10.0}))
    assert compare(stuck, over).waiting_seconds == pytest.approx(1.0)


def test_counters_that_began_anew():
    """Counters that began anew, as after a loaded state, count from 0."""
    anew = replace(AFTER, stats=replace(AFTER.stats, respawns=1))
    assert compare(AFTER, anew).respawns == 1


def test_scalars_have_names_for_plots():
    """`scalars()` has the share and each cause as plain numbers with names for plots."""
    scalars = compare(BEFORE, AFTER).scalars()
    assert scalars["stall/share"] == pytest.approx(0.5)
    assert scalars["stall/waiting/decode"] == pytest.approx(0.83)


def findings(
    share: float = 0.5, workers: int = 4, cores: int = 16, idle_cores: float | None = None, **waiting: float
) -> Findings:
    return Findings(
        share=share,
        seconds=10,
        waiting=waiting,
        straggler=None,
        workers=workers,
        cores=cores,
        idle_cores=idle_cores,
        engine_before=None,
        engine=None,
    )


@pytest.mark.parametrize(
    ("before", "uptime", "loop", "share"),
    [
        (EngineView(uptime_seconds=100.0, loop_cpu_seconds=50.0, recode_busy_seconds=50.0), 100.2, 50.13, 0.65),
        # The first report of a loader on an engine that has run for a while: the mean of that time.
        (None, 1000.0, 300.0, 0.3),
        # The engine was started anew between the snapshots.
        (EngineView(uptime_seconds=100.0, loop_cpu_seconds=50.0, recode_busy_seconds=50.0), 0.4, 0.1, 0.25),
    ],
)
def test_the_share_of_the_loop_is_by_the_engines_clock(before, uptime, loop, share):
    """The loop's share is its CPU time divided by the engine's time, not by what the trainer has noted of its own.

    Regression: with reports every 0.2 s a trainer inside a step had noted 0.02 s, and the loop had "659% of a core".
    """
    now = EngineView(
        uptime_seconds=uptime, loop_cpu_seconds=loop, most_recoders=2, recode_busy_seconds=loop, in_flight=1
    )
    found = msgspec.structs.replace(findings(network=0.02), seconds=0.02, engine_before=before, engine=now)
    assert found.loop_share == pytest.approx(share)
    assert found.recoders_share == pytest.approx(share / 2)
    assert diagnose(found) is not Bottleneck.ENGINE_LOOP


@pytest.mark.parametrize(
    ("share", "workers", "cores", "idle", "expected"),
    [
        (0.5, 4, 16, None, "4 more workers (num_workers=8; 12.0 of 16 cores idle) or "),
        (0.5, 4, 5, None, "1 more worker (num_workers=5; 1.0 of 5 cores idle) or "),
        (0.5, 4, 4, None, "no core is idle (4 workers, 4 cores): "),
        (0.99, 1, 64, 62.0, "15 more workers (num_workers=16; 62.0 of 64 cores idle) or "),
        # Two workers that sleep in their transform; two of two cores that other processes keep busy.
        (0.9, 2, 2, 1.9, "2 more workers (num_workers=4; 1.9 of 2 cores idle) or "),
        (0.9, 2, 2, 0.1, "no core is idle (2 workers, 2 cores): "),
        (0.5, 2, 16, 0.4, "no core is idle (2 workers, 16 cores): "),
    ],
)
def test_how_many_workers(share, workers, cores, idle, expected):
    """As many more workers are advised as the waiting needs, as far as cores are idle.

    Without the cores' times, each worker counts as one busy core.
    """
    assert more_workers(findings(share, workers, cores, idle)) == expected


def test_idle_cores_are_those_between_two_snapshots():
    """Idle cores are unused CPU seconds by seconds between two snapshots, and unknown where the kernel does not say."""
    before, after = (Snapshot(cores=2, at=at, idle_core_seconds=idle) for at, idle in ((100.0, 500.0), (130.0, 545.0)))
    assert after.idle_cores(before) == pytest.approx(1.5)
    assert after.idle_cores(Snapshot()) is None


@pytest.mark.parametrize("cause", ALL)
def test_every_cause_has_a_bottleneck_and_advice(cause):
    """Every cause of waiting has a bottleneck and an advice."""
    found = findings(**{cause: 5.0})
    bottleneck = diagnose(found)
    assert bottleneck not in (Bottleneck.NOTHING, Bottleneck.NOT_BOUND)
    assert advise(bottleneck, found)


def test_stages_count_together_against_the_network():
    """Stages of a worker count together against the network: three of about 20 % outweigh 38 % of it."""
    assert diagnose(findings(network=4.0, read=2.0, decode=2.5, transform=2.0)) is Bottleneck.DECODE


def test_the_engines_view_of_one_session():
    """`EngineView` has the engine's counters by name and the waiting of its own session; unknown names are left out."""
    mine = {"consumer": "rank 0", "job": "j", "dataset": "d"}
    values = {
        **mine,
        "needs": 7,
        "hit_bound": 0.5,
        "unheard_of": 1,
        "sessions": [{**mine, "waiting_seconds": 1.5}, {**mine, "job": "other", "waiting_seconds": 9.0}],
    }
    assert EngineView.of(values) == EngineView(needs=7, hit_bound=0.5, waiting_seconds=1.5)
