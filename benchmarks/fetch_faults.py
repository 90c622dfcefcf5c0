"""The fetcher under latency, narrow links and faults: one row per scenario with its bound, every byte compared.

    python benchmarks/fetch_faults.py                        all rows, about fifteen minutes
    python benchmarks/fetch_faults.py link hedging           some of them
    python benchmarks/fetch_faults.py --fetch-processes 4    the same bounds where four processes fetch

Ends with 1 when a bound is missed. Times are of the reader's own clock, bytes and requests of the simulator's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import uvloop
from fetch_load import Data, Deliveries, Load, loading
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator

from streamer.config import FetchConfig

MiB = 1 << 20
DEFAULT = FetchConfig()
# What is fetched before a figure is taken: the window has found the link by then.
WARM_CHUNKS = 64
# As ImageNet's.
RAW_OBJECTS, RAW_BYTES = 10_000, 110_000


@dataclass(frozen=True)
class Row:
    """One figure and its bound."""

    scenario: str
    figure: float
    bound: float
    unit: str
    least: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the bound is met."""
        return self.figure >= self.bound if self.least else self.figure <= self.bound

    def __str__(self) -> str:
        sign, verdict = (">=" if self.least else "<="), ("holds" if self.holds else "MISSED")
        figure = f"{self.figure:>8.3g} {self.unit}"
        return f"{self.scenario:<44} {figure:<20} {sign} {self.bound:<6g} {verdict:<7} {self.note}"


@dataclass(frozen=True)
class Stage:
    """Where the rows play.

    Attributes:
        data: of the store.
        processes: number of fetch processes; 0: this process fetches.
    """

    data: Data
    processes: int = 0

    def loading(
        self,
        options: Mapping[str, object],
        config: FetchConfig | None = None,
        *,
        listing_options: Mapping[str, object] | None = None,
    ) -> AbstractAsyncContextManager[Load]:
        """Opens fetchers on an endpoint of the row's own."""
        return loading(self.data, options, config, processes=self.processes, listing_options=listing_options)

    @contextlib.contextmanager
    def simulator(self, *options: str) -> Iterator[Simulator]:
        """A simulator of the row's own."""
        with simulator(self.data.root, *map(str, options)) as running:
            yield running


def _note(load: Load) -> str:
    after = load.statistics()
    return (
        f"window {after.window}, requests {after.requests}, retries {after.retries}, 503s {after.throttled}, "
        f"hedges {after.hedges} won {after.hedge_wins}, stalled {after.stalled}, outpaced {after.outpaced}"
    )


# ---------------------------------------------------------------- latency and links


async def latency(stage: Stage) -> list[Row]:
    """The rate of an uncapped link (90 MB/s per connection) at 30 and 100 ms against that at none: five turns each.

    Without a link's limit it is the rate of one core, and so is the noise: 1,270-1,880 MB/s second by second.
    """
    rates: dict[int, list[float]] = {0: [], 30: [], 100: []}
    with stage.simulator("--conn-mbps", "90") as store:
        for _ in range(5):
            for milliseconds, found in rates.items():
                store.set(ttfb_ms=milliseconds, ttfb_sigma=0.5 if milliseconds else 0)
                async with stage.loading(store.options) as load:
                    begin = _now()
                    found.append((await load.read_for(7, load.chunks())).rate(begin + 3, begin + 7))
    base = statistics.median(rates.pop(0))
    return [
        Row(f"latency {ms} ms: rate lost", 1 - statistics.median(found) / base, 0.1, "of it", note=f"{base:.0f} MB/s")
        for ms, found in rates.items()
    ]


async def link(stage: Stage) -> list[Row]:
    """A link of 125 and of 312 MB/s, 30 ms away: its share in the 6 s that follow the first 8."""
    rows = []
    for rate in (125, 312):
        with stage.simulator(*S3_PROFILE, "--total-mbps", str(rate)) as store:
            async with stage.loading(store.options) as load:
                begin = _now()
                got = await load.read_for(14, load.chunks())
                share = got.rate(begin + 8, begin + 14) / rate
                reached = got.reached(0.95 * rate, begin)
                rows.append(
                    Row(f"link {rate} MB/s after 8 s", share, 0.95, "of it", True, f"reached in {reached:.1f} s")
                )
    return rows


async def drop(stage: Stage) -> list[Row]:
    """A link of 312 MB/s that drops to a fifth for 15 s and recovers."""
    with stage.simulator(*S3_PROFILE, "--total-mbps", "312") as store:
        async with stage.loading(store.options) as load, asyncio.TaskGroup() as group:
            begin = _now()
            reading = group.create_task(load.read_for(40, load.chunks()))
            await asyncio.sleep(10)
            store.set(total_mbps=62.4)
            await asyncio.sleep(15)
            note = _note(load)
            store.set(total_mbps=312)
        got = reading.result()
        return [
            Row("fivefold drop: after 10 s of it", got.rate(begin + 20, begin + 25) / 62.4, 0.9, "of it", True, note),
            Row("recovery: after 10 s", got.rate(begin + 35, begin + 40) / 312, 0.9, "of it", True, _note(load)),
        ]


# ---------------------------------------------------------------- refusals and broken bodies


async def _timed(stage: Stage, store: Simulator, chunks: int) -> tuple[float, dict[str, object], str]:
    """Seconds for so many chunks after the window is warm; the server's counts; a note."""
    async with stage.loading(store.options) as load:
        walk = load.chunks()
        await load.read(islice(walk, WARM_CHUNKS))
        store.statistics(reset=True)
        begin = _now()
        got = await load.read(islice(walk, chunks))
        seconds = _now() - begin
        assert not got.errors, got.errors[0]
        await asyncio.sleep(0.1)  # the server counts a request when it ended
        return seconds, store.statistics(), _note(load)


async def refusals(stage: Stage) -> list[Row]:
    """A fifth of the requests answered 503 by chance, on a link of 300 MB/s; three turns each."""
    clean, faulty, note = [], [], ""
    with stage.simulator(*S3_PROFILE, "--total-mbps", "300") as store:
        for _ in range(3):
            store.set(p_503=0)
            clean.append((await _timed(stage, store, 160))[0])
            store.set(p_503=0.2)
            seconds, _, note = await _timed(stage, store, 160)
            faulty.append(seconds)
    ratio = statistics.median(faulty) / statistics.median(clean)
    return [Row("20 % 503: time", ratio, 1.2, "x", note=note)]


async def small(stage: Stage) -> list[Row]:
    """10,000 raw objects of 110 KB from the first request on, each fault in turns with none; five turns."""
    faults: dict[str, dict[str, float]] = {
        "no fault": {},
        "1 % 503": {"p_503": 0.01},
        "5 % 503": {"p_503": 0.05},
        "5 % resets": {"p_reset": 0.05},
        "5 % short bodies": {"p_truncate": 0.05},
        "5 % of each": {"p_503": 0.05, "p_reset": 0.05, "p_truncate": 0.05},
    }
    none = dict.fromkeys(("p_503", "p_reset", "p_truncate"), 0.0)
    rates: dict[str, list[float]] = {name: [] for name in faults}
    notes = dict[str, str]()
    stage.data.add_raw(RAW_OBJECTS, RAW_BYTES)
    with stage.simulator("--ttfb-ms", "30", "--ttfb-sigma", "0.5") as store:
        for _ in range(5):
            for name, probabilities in faults.items():
                store.set(**{**none, **probabilities})
                async with stage.loading(store.options) as load:
                    begin = _now()
                    got = await load.read(load.raw_chunks())
                    assert not got.errors, got.errors[0]
                    rates[name].append(RAW_OBJECTS / (_now() - begin))
                    notes[name] = _note(load)
    clean = statistics.median(rates.pop("no fault"))
    rows = []
    for name, found in rates.items():
        turns = ", ".join(f"{rate:.0f}" for rate in found)
        bound = 0.65 if name == "5 % of each" else 0.85
        rows += [
            Row(f"raw, {name}: rate", statistics.median(found) / clean, bound, f"of {clean:.0f}/s", True, notes[name]),
            Row(f"raw, {name}: slowest turn", min(found) / clean, 0.6, "of it", True, turns),
        ]
    return rows


async def _broken(stage: Stage, name: str, title: str) -> list[Row]:
    with stage.simulator(*S3_PROFILE, "--total-mbps", "300", f"--p-{name}", "0.3") as store:
        seconds, counts, note = await _timed(stage, store, 160)
        sent = int(str(counts["body_bytes_sent"]))
        extra = sent / (160 * 8 * MiB) - 1
        return [Row(f"30 % {title}: extra bytes", extra, 0.05, "of all", note=f"{seconds:.1f} s, {note}")]


async def stalls(stage: Stage) -> list[Row]:
    """One object's next answer hangs for ever: before its first byte, in its body, and as the very first request."""
    rows = []
    with stage.simulator(*S3_PROFILE, "--total-mbps", "300", "--stall-s", "600", "--fault-prefix", "/bucket/bad/") as s:
        for fault, title, warm in (
            ("p_stall_body", "in its body", True),
            ("p_stall", "before its first byte", True),
            ("p_stall_body", "in its body, first of all", False),
            ("p_stall", "before its first byte, first of all", False),
        ):
            async with stage.loading(s.options) as load:
                usual = await load.read(islice(load.chunks(), WARM_CHUNKS), width=16) if warm else None
                seconds = await _stalled(load, s, fault)
                lost = seconds - (usual.quantile(0.5) if usual else 0.1)
                rows.append(Row(f"a body stalled {title}: lost", lost, 2.0, "s", note=_note(load)))
    return rows


async def _stalled(load: Load, store: Simulator, fault: str) -> float:
    """Seconds that a chunk takes whose first answer hangs."""
    store.statistics(reset=True)
    store.set(**{fault: 1})
    begin = _now()
    async with asyncio.TaskGroup() as group:
        got = group.create_task(load.read(islice(load.chunks(folder="bad"), 1)))
        kind = fault.removeprefix("p_")
        while not _struck(store.statistics(), kind):  # noqa: ASYNC110 - the simulator announces nothing
            await asyncio.sleep(0.01)
        store.set(**{fault: 0})
    assert not got.result().errors, got.result().errors
    return _now() - begin


def _struck(counts: dict[str, object], kind: str) -> bool:
    faults = counts["errors_injected"]
    return isinstance(faults, dict) and faults.get(kind, 0) > 0


async def hedging(stage: Stage) -> list[Row]:
    """2 % of the requests 1 s slow: p99 of chunks of 1 MiB, 16 at once, without and with duplicates."""
    p99, extra, note = {}, 0.0, ""
    profile = ("--ttfb-ms", "30", "--ttfb-sigma", "0.2", "--conn-mbps", "90")
    with stage.simulator(*profile, "--p-stall", "0.02", "--stall-s", "1") as store:
        for hedge in (False, True):
            async with stage.loading(store.options, replace(DEFAULT, hedge=hedge)) as load:
                walk = load.chunks(MiB)
                await load.read(islice(walk, WARM_CHUNKS), width=16)
                begin = load.statistics().requests
                got = await load.read(islice(walk, 3000), width=16)
                p99[hedge], note = got.quantile(0.99), _note(load)
                extra = (load.statistics().requests - begin) / 3000 - 1
    note = f"p99 {p99[False] * 1e3:.0f} -> {p99[True] * 1e3:.0f} ms; {note}"
    return [
        Row("2 % 1 s slow: p99 better by hedging", p99[False] / p99[True], 5, "x", True, note),
        Row("2 % 1 s slow: more requests", extra, 0.05, "of all"),
    ]


# ---------------------------------------------------------------- stores that ration


@contextlib.asynccontextmanager
async def _rationed(store: Simulator, **ration: object) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """Its endpoint, and what it counted, known after the end."""
    counted: dict[str, int] = {}
    told = json.dumps({"upstream": store.endpoint, **ration})
    command = [sys.executable, str(Path(__file__).with_name("rationed_store.py")), told]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip(), counted
    finally:
        said, _ = await process.communicate(b"")
        counted.update(json.loads(said))


async def rationed(stage: Stage) -> list[Row]:
    """A store that permits 200 or 600 requests per second, asked for 256 KiB each by 64 readers for 60 s; also where
    5 % fail by chance on top, and where the limit begins after 20 s of such chance.
    """
    rows = []
    for permitted, chance, begins in ((200, 0.0, 0), (600, 0.0, 0), (200, 0.05, 0), (600, 0.05, 0), (300, 0.05, 20)):
        title = f"{permitted}/s permitted" + (f", {chance:.0%} chance" if chance else "")
        title += f", from {begins} s on" if begins else ""
        rows += await _rationed_rows(stage, title, permitted, chance, begins)
    return rows


async def _rationed_rows(stage: Stage, title: str, permitted: int, chance: float, begins: int) -> list[Row]:
    known, seconds = 10, 50
    with stage.simulator("--ttfb-ms", "30", "--p-503", str(chance)) as store:
        async with (
            _rationed(store, per_second=permitted, begins_after=begins, known_after=known) as (endpoint, counted),
            stage.loading({**store.options, "endpoint_url": endpoint}) as load,
        ):
            walk = load.chunks(MiB // 4)
            first = await load.read_for(begins + known, walk)
            got = await load.read_for(seconds, walk)
        assert not first.errors + got.errors, first.errors + got.errors
    rate = len(got.lengths) / seconds / permitted
    refused = counted["late_refused"] / max(1, counted["late_refused"] + counted["late_granted"])
    note = f"{counted['refused'] - counted['late_refused']} before"
    return [
        Row(f"{title}: rate", rate, 0.85 if chance else 0.9, "of it", True),
        Row(f"{title}: refused by it", refused, 0.02 if chance else 0.01, "of all", note=note),
    ]


async def credentials(stage: Stage) -> list[Row]:
    """A profile's credentials expire in mid-run and lie renewed in its file: one refresh, no error."""
    folder = stage.data.root.parent
    path = folder / "credentials"
    text = "[default]\naws_access_key_id = {}\naws_secret_access_key = secret\n"
    path.write_text(text.format("OLDKEY"))
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(path)
    with stage.simulator(*S3_PROFILE, "--total-mbps", "300") as store:
        async with _rationed(store, expired_key="OLDKEY", expires_after=40) as (endpoint, counted):
            options = {"endpoint_url": endpoint, "profile": "default"}
            async with stage.loading(options, replace(DEFAULT, window_max=16)) as load:
                walk = load.chunks()
                first = await load.read(islice(walk, 30))
                path.write_text(text.format("NEWKEY"))
                second = await load.read(islice(walk, 100))
    errors = len(first.errors) + len(second.errors)
    return [
        Row("expired credentials: errors", errors, 0, "", note=str(counted)),
        Row("expired credentials: refused requests", counted["expired"], 16, "", note="the window when they expired"),
    ]


# ---------------------------------------------------------------- objects and endpoints that fail


async def one_object(stage: Stage) -> list[Row]:
    """One object that always fails while the others are read: its error and how long it took.

    Refusals (503) are waited for as an outage is: `outage_seconds`, here 10.
    """
    rows = []
    for fault in ("p_503", "p_reset", "p_stall", "p_stall_body"):
        options = (*S3_PROFILE, "--total-mbps", "300", "--stall-s", "600", "--fault-prefix", "/bucket/bad/")
        with stage.simulator(*options) as store:
            store.set(**{fault: 1})
            async with (
                stage.loading(store.options, replace(DEFAULT, outage_seconds=10)) as load,
                asyncio.TaskGroup() as group,
            ):
                await load.read(islice(load.chunks(), WARM_CHUNKS))
                others = group.create_task(load.read_for(40, load.chunks(), width=16))
                begin, bad = _now(), Deliveries()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(30):
                        await load.read(islice(load.chunks(folder="bad"), 1), into=bad)
                seconds, note = _now() - begin, _note(load)
                others.cancel()
        named = bool(bad.errors) and "bucket/bad/one.tar" in str(bad.errors[0])
        rows.append(Row(f"one object always {fault}: named", seconds if named else 999, 15, "s", note=note))
    return rows


async def refused(stage: Stage) -> list[Row]:
    """Nobody listens for 20 s, then the store is back."""
    with contextlib.ExitStack() as first:
        store = first.enter_context(stage.simulator(*S3_PROFILE, "--total-mbps", "300"))
        port = store.endpoint.rsplit(":", 1)[1]
        async with stage.loading(store.options) as load, asyncio.TaskGroup() as group:
            reading = group.create_task(load.read_for(40, load.chunks(), width=16))
            await asyncio.sleep(3)
            first.close()
            await asyncio.sleep(20)
            with stage.simulator(*S3_PROFILE, "--total-mbps", "300", "--port", port):
                back = _now()
                await reading
                got = reading.result()
    errors = got.errors
    again = next((end - back for end in got.ended if end > back), 999.0)
    return [
        Row("refused for 20 s: errors", len(errors), 0, "", note=str(errors[:1])),
        Row("refused for 20 s: first chunk again after", again, 5, "s"),
    ]


async def no_name(stage: Stage) -> list[Row]:
    """An endpoint whose name does not exist: an error that says so, soon after `outage_seconds`."""
    options = {"key": "k", "secret": "s", "endpoint_url": "http://streamer-no-such-host.invalid:9000"}
    with stage.simulator() as store:
        async with stage.loading(options, replace(DEFAULT, outage_seconds=10), listing_options=store.options) as load:
            begin = _now()
            got = await load.read(islice(load.chunks(), 1))
            said = str(got.errors[0])
            seconds = _now() - begin if "cannot be resolved" in said else 999.0
    return [Row("no such host: error that says so", seconds, 15, "s", note=said)]


SCENARIOS: dict[str, Callable[[Stage], Awaitable[list[Row]]]] = {
    "latency": latency,
    "link": link,
    "drop": drop,
    "refusals": refusals,
    "small": small,
    "resets": partial(_broken, name="reset", title="resets in mid-body"),
    "truncated": partial(_broken, name="truncate", title="truncated bodies"),
    "stalls": stalls,
    "hedging": hedging,
    "rationed": rationed,
    "credentials": credentials,
    "one_object": one_object,
    "refused": refused,
    "no_name": no_name,
}


def _now() -> float:
    return asyncio.get_running_loop().time()


def main() -> int:
    """Plays the scenarios that were named; prints each row as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--fetch-processes", type=int, default=0, help="default: 0, the loop fetches")
    arguments = parser.parse_args()
    names, processes = arguments.scenarios or list(SCENARIOS), arguments.fetch_processes
    if unknown := set(names) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}")
    missed = 0
    kind = f"fetch_faults-{processes}_processes" if processes else "fetch_faults"
    with kept(kind, keep=names == list(SCENARIOS)), tempfile.TemporaryDirectory() as folder:
        stage = Stage(Data(Path(folder) / "store", files=8, file_bytes=64 * MiB), processes)
        for name in names:
            begin = time.monotonic()
            for row in uvloop.run(SCENARIOS[name](stage)):
                missed += not row.holds
                print(row)
            print(f"  ({name}: {time.monotonic() - begin:.0f} s)")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
