"""Fetching side by side, in one run: bare obstore, s3fs, and ours with and without checksums and files.

    export S3SIM=path/to/s3sim
    python benchmarks/fetch.py bulk      tars over a link like S3's: rates, CPU s/GB, a link of 500 MB/s
    python benchmarks/fetch.py small     objects of 100 KB without latency: rates, CPU us per object
    python benchmarks/fetch.py epoch     requests and bytes of one cold epoch, by the server's own log
    python benchmarks/fetch.py at --endpoint http://127.0.0.1:9000 --prefix s3://bucket/tars/     any server

Each contender reads the same bytes in a process of its own, in turns: medians are of interleaved runs. Bytes are thrown
away, except by `ours+file` (checksums and chunk files, by the cache's publish) and `s3fs` (its own parallel read into
files). CPU seconds are user + system of that process. `file` and `file again` fetch nothing: what a plain writer pays
for as many bytes in new files, and in files whose pages are there. The difference is the price of new pages on this
machine, a part of "the file" of ours; it is not subtracted from any figure. The page cache is filled before each run
(`memory.py` says why; --no-fill: not).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import uvloop
from contenders import CONTENDERS, Job, Result, chunks_of, listing, run_apart
from memory import PageCache
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator

from streamer.store import open_store

MB = 1_000_000
TAR_BYTES = 125 * MB
SMALL_BYTES = 100_000
LINK_MBPS = 500
# The server writes its log every second.
LOG_SECONDS = 1.5

# Ours, and beside it what is the machine's.
FILES = ("ours+file", "file", "file again")

Runs = dict[str, list[Result]]


@dataclass(frozen=True)
class Claim:
    """A figure and its bound."""

    text: str
    value: float
    bound: float
    at_least: bool

    def __str__(self) -> str:
        holds = self.value >= self.bound if self.at_least else self.value <= self.bound
        sign = ">=" if self.at_least else "<="
        return f"  {'yes' if holds else 'NO '}  {self.text:<64} {self.value:8.3f}  {sign} {self.bound:g}"


# ---------------------------------------------------------------- data and machine


def make_tars(folder: Path, count: int) -> None:
    """Large objects; what is in them does not matter here."""
    folder.mkdir(parents=True, exist_ok=True)
    content = np.random.default_rng(1).bytes(TAR_BYTES)
    for number in range(count):
        (folder / f"{number:04}.tar").write_bytes(content)


def make_small(folder: Path, count: int) -> None:
    """Objects of 100 KB."""
    folder.mkdir(parents=True, exist_ok=True)
    content = np.random.default_rng(2).bytes(2 * SMALL_BYTES)
    for number in range(count):
        (folder / f"{number:06}.bin").write_bytes(content[number % SMALL_BYTES :][:SMALL_BYTES])


@contextmanager
def data_folder(given: argparse.Namespace) -> Iterator[Path]:
    """Where the data lie: kept, or for this run."""
    with tempfile.TemporaryDirectory(prefix="streamer-fetch-") as folder:
        root = Path(given.keep or folder)
        if not (root / "bucket" / "tars").exists():
            make_tars(root / "bucket" / "tars", given.tars)
        if not (root / "bucket" / "small").exists():
            make_small(root / "bucket" / "small", given.objects)
        yield root


def in_turns(names: Sequence[str], job: Job, given: argparse.Namespace) -> Runs:
    """Runs the contenders one after the other, again and again."""
    runs: Runs = {name: [] for name in names}
    with PageCache(Path(job.folder)) as pages:
        for _ in range(given.runs):
            for name in names:
                if given.fill:
                    pages.fill()
                runs[name].append(run_apart(name, job))
    return runs


# ---------------------------------------------------------------- what is printed


def rate(runs: Sequence[Result]) -> float:
    """Median, MB/s."""
    return statistics.median(run.megabytes_per_second for run in runs)


def per_gigabyte(runs: Sequence[Result]) -> float:
    """Median, CPU s/GB."""
    return statistics.median(run.cpu_per_gigabyte for run in runs)


def per_object(runs: Sequence[Result]) -> float:
    """Median, CPU us."""
    return statistics.median(run.cpu_per_object for run in runs)


def report(runs: Runs) -> None:
    """A table of medians."""
    print(
        f"{'contender':<10} {'MB/s':>7} {'CPU s/GB':>9} {'from':>6} {'to':>6} {'us/object':>10} {'requests':>9}"
        f" {'faults':>8} {'switches':>8} {'RSS MB':>7}  last run"
    )
    for name, results in runs.items():
        costs = [run.cpu_per_gigabyte for run in results]
        faults = statistics.median(run.page_faults for run in results)
        switches = statistics.median(run.switches for run in results)
        resident = statistics.median(run.resident_bytes for run in results) / MB
        last = results[-1]
        print(
            f"{name:<10} {rate(results):>7.0f} {per_gigabyte(results):>9.2f} {min(costs):>6.2f} {max(costs):>6.2f}"
            f" {per_object(results):>10.0f} {last.requests:>9} {faults:>8.0f} {switches:>8.0f} {resident:>7.0f}"
            f"  {last.notes}"
        )


def breakdown(runs: Runs, unit: str) -> None:
    """What each step adds to the CPU of bare obstore."""
    cost = per_gigabyte if unit == "s/GB" else per_object
    digits = 2 if unit == "s/GB" else 0
    steps = [("bare obstore", "obstore"), ("our scheduling and one copy", "ours")]
    steps += [("checksums", "ours+sum"), ("the file", "ours+file")]
    before = 0.0
    print(f"\nwhere the CPU goes, {unit}:")
    for text, name in steps:
        total = cost(runs[name])
        print(f"  {total - before:+8.{digits}f}  {text:<28} = {total:.{digits}f}")
        before = total
    new, again = cost(runs["file"]), cost(runs["file again"])
    print(
        f"  of the file: a plain writer of the same bytes, in turns with the others: {new:.{digits}f} into new files,"
    )
    print(f"  {again:.{digits}f} into files whose pages are there; new pages on this machine: {new - again:.{digits}f}")


def judge(claims: Sequence[Claim]) -> None:
    """Each figure beside its bound."""
    print()
    for claim in claims:
        print(claim)


# ---------------------------------------------------------------- the scenes


def bulk(given: argparse.Namespace) -> None:
    """Tars into the cache over a link like S3's."""
    with data_folder(given) as root, simulator(root, *S3_PROFILE, command=given.s3sim) as server:
        job = Job(server.endpoint, "s3://bucket/tars/", str(root))
        runs = in_turns(("obstore", "s3fs", "ours", "ours+sum", *FILES), job, given)
        server.set(total_mbps=LINK_MBPS)
        # Long enough that the start does not count: 12 s at the full rate.
        linked = in_turns(("ours+file",), replace(job, passes=3), given)["ours+file"]
    report({**runs, f"at {LINK_MBPS}": linked})
    breakdown(runs, "s/GB")
    files = runs["ours+file"]
    judge(
        [
            Claim(f"of a link of {LINK_MBPS} MB/s", rate(linked) / LINK_MBPS, 0.95, True),
            Claim("of bare obstore that throws the bytes away", rate(files) / rate(runs["obstore"]), 0.40, True),
            Claim("times s3fs into files", rate(files) / rate(runs["s3fs"]), 2.5, True),
            Claim("CPU s/GB, fetch, checksums and files", per_gigabyte(files), 1.1, False),
        ]
    )


def small(given: argparse.Namespace) -> None:
    """Small objects into the cache, no latency."""
    with data_folder(given) as root, simulator(root, command=given.s3sim) as server:
        job = Job(server.endpoint, "s3://bucket/small/", str(root), pack=80, passes=given.passes)
        runs = in_turns(("obstore", "ours", "ours+sum", *FILES), job, given)
    report(runs)
    breakdown(runs, "us/object")
    files = runs["ours+file"]
    judge(
        [
            Claim("of bare obstore that throws the bytes away", rate(files) / rate(runs["obstore"]), 0.50, True),
            Claim("CPU us per object, fetch, checksums and files", per_object(files), 230.0, False),
        ]
    )


def epoch(given: argparse.Namespace) -> None:
    """One cold epoch: what the server was asked for and sent, beside what there is."""
    claims = []
    with data_folder(given) as root:
        log = root / "access.log"
        with simulator(root, *S3_PROFILE, "--access-log", str(log), command=given.s3sim) as server:
            for prefix, pack in (("s3://bucket/tars/", 1), ("s3://bucket/small/", 80)):
                for hedge in (False, True):
                    job = Job(server.endpoint, prefix, str(root), pack=pack, hedge=hedge)
                    claims += cold_epoch(job, server, log)
    judge(claims)


def cold_epoch(job: Job, server: Simulator, log: Path) -> list[Claim]:
    """Fetches everything once, with files."""
    planned, size = uvloop.run(_planned(job))
    server.statistics(reset=True)
    time.sleep(LOG_SECONDS)
    before = log.stat().st_size if log.exists() else 0
    result = run_apart("ours+file", job)
    counted = server.statistics(reset=True)
    time.sleep(LOG_SECONDS)
    twice = asked_twice(log, before)
    sent, gets = int(str(counted["body_bytes_sent"])), int(str(counted["object_gets"]))
    what = f"{job.prefix} {'with' if job.hedge else 'without'} hedging:"
    print(f"{what} {gets} GETs for {planned} ranges, {sent / MB:.1f} MB sent of {size / MB:.1f}; {result.notes}")
    bound = 1.03 if job.hedge else 1.01
    claims = [
        Claim(f"{what} requests", gets / planned, bound, False),
        Claim(f"{what} bytes", sent / size, bound, False),
    ]
    # A duplicate is the same range on purpose: the share of requests bounds it.
    return claims if job.hedge else [*claims, Claim(f"{what} ranges asked for twice", twice, 0, False)]


async def _planned(job: Job) -> tuple[int, int]:
    store = open_store(job.prefix, job.options)
    chunks = chunks_of(await listing(store, job), job)
    await store.aclose()
    return sum(len(chunk.extents) for chunk in chunks), sum(chunk.fetch_bytes for chunk in chunks)


def asked_twice(log: Path, start: int) -> int:
    """Ranges beyond the first request for each, from byte `start` of the server's log."""
    with log.open() as lines:
        lines.seek(start)
        words = (line.split() for line in lines)
        asked = Counter((word[3], word[4]) for word in words if word[2] == "GET" and "bytes=" in word[4])
    return sum(count - 1 for count in asked.values())


def at(given: argparse.Namespace) -> None:
    """Any server."""
    with tempfile.TemporaryDirectory(dir=given.keep) as folder:
        job = Job(given.endpoint, given.prefix, folder, in_flight=given.in_flight, lookahead=given.lookahead)
        job = replace(job, hedge=given.hedge, pack=given.pack, chunk_bytes=given.chunk_mib << 20, passes=given.passes)
        report(in_turns(given.contenders.split(","), replace(job, most_bytes=given.most_mb * MB), given))


SCENES = {"bulk": bulk, "small": small, "epoch": epoch, "at": at}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--fill", action=argparse.BooleanOptionalAction, default=True, help="fill the page cache")
    parser.add_argument("--keep", help="folder for data and files, kept for the next run")
    parser.add_argument("--s3sim", help="path of the simulator's command; default $S3SIM")
    parser.add_argument("--tars", type=int, default=16, help="tars of 125 MB")
    parser.add_argument("--objects", type=int, default=10_000, help="objects of 100 KB")
    parser.add_argument("--passes", type=int, default=3, help="small, at: times that the bytes are read, in one go")
    other = parser.add_argument_group("at")
    other.add_argument("--endpoint", default="")
    other.add_argument("--prefix", default="s3://bucket/tars/")
    other.add_argument("--contenders", default=",".join(CONTENDERS))
    other.add_argument("--pack", type=int, default=1, help="objects per chunk; 1: large objects are cut")
    other.add_argument("--chunk-mib", type=int, default=8)
    other.add_argument("--in-flight", type=int, default=64, help="requests at once of the bare contenders")
    other.add_argument("--lookahead", type=int, default=64, help="chunks that ours is asked for at once")
    other.add_argument("--hedge", action=argparse.BooleanOptionalAction, default=True)
    other.add_argument("--most-mb", type=int, default=1_000_000)
    return parser.parse_args()


def main() -> None:
    """One scene."""
    given = arguments()
    with kept(f"fetch-{given.scene}", f"{given.runs} runs in turns"):
        SCENES[given.scene](given)


if __name__ == "__main__":
    main()
