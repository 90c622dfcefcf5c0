"""A cold epoch of two ranks from a store with faults and without: samples/s, every byte compared.

    python benchmarks/rank_faults.py                          five turns, about ten minutes
    python benchmarks/rank_faults.py --mixed                  the mixed fault on raw files and on tars
    python benchmarks/rank_faults.py --fetch-processes 4      the same bounds where four processes fetch
    python benchmarks/rank_faults.py --turns 1

10,000 samples of 110 KB on a simulated S3 (first byte 30 ms, 90 MB/s a connection): raw objects, and with --mixed raw
objects in class folders, and tars of 500 samples. Two processes with two workers each share an engine with an empty
cache; the manifest is present. The rate is all samples over the time from the first `iter()` to the end of the slower
rank. Each fault runs in turns with none. Ends with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bytecode import compile_streamer
from memory import bring
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator

SAMPLES, NBYTES, BATCH, RANKS, WORKERS = 10_000, 110_000, 64, 2, 2
FAULTS: dict[str, tuple[dict[str, float], float]] = {
    "1 % 503": ({"p_503": 0.01}, 0.85),
    "5 % 503": ({"p_503": 0.05}, 0.85),
    "5 % resets": ({"p_reset": 0.05}, 0.85),
    "5 % short bodies": ({"p_truncate": 0.05}, 0.85),
    "5 % of each": ({"p_503": 0.05, "p_reset": 0.05, "p_truncate": 0.05}, 0.65),
}
# One in twenty requests fails or takes twenty times as long.
MIXED = {"p_503": 0.02, "p_reset": 0.02, "p_truncate": 0.01, "p_slow": 0.01}
NO_FAULT = dict.fromkeys(("p_503", "p_reset", "p_truncate", "p_slow"), 0.0)
# No single run may be slower than this share of the rate without faults.
SLOWEST = 0.6
CLASSES, TAR_SAMPLES = 10, 500


@dataclass(frozen=True)
class Source:
    """The samples as one kind of objects.

    Attributes:
        folder: below the bucket.
        faults: by name, with their bounds.
        slowest: bound of a single run.
    """

    name: str
    folder: str
    faults: Mapping[str, tuple[dict[str, float], float]]
    slowest: float = SLOWEST


SINGLE = (Source("raw", "raw", FAULTS),)
# Single runs of the mixed fault are printed and not bounded: a few late answers decide how an epoch of seconds ends.
BOTH = (
    Source("raw files", "classes", {"mixed": (MIXED, 0.6)}, 0.0),
    Source("tars", "tars", {"mixed": (MIXED, 0.8)}, 0.0),
)


def run_rank(told: dict[str, str]) -> None:
    """One rank: waits for a line on stdin, reads an epoch, prints when it began, when it ended and what it has read."""
    from streamer import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        told["url"],
        manifest=told["manifest"],
        cache_dir=told["cache"],
        storage_options=json.loads(told["options"]),
        decode=None,
    )
    seen: dict[str, str] = {}
    with StreamingDataLoader(dataset, BATCH, WORKERS, report_every=None) as loader:
        sys.stdin.readline()
        began = time.monotonic()
        for batch in loader:
            assert isinstance(batch, dict)
            for name, content in zip(batch["__key__"], batch["bin"], strict=True):
                seen[name] = hashlib.blake2b(content, digest_size=8).hexdigest()
        ended = time.monotonic()
    print(json.dumps({"began": began, "ended": ended, "seen": seen}), flush=True)


def measure(root: Path, server: Simulator, source: Source, expected: dict[str, str]) -> float:
    """Samples per second of one cold epoch of all ranks.

    Raises:
        SystemExit: a rank failed, or a sample is missing or wrong.
    """
    cache = root / "cache"
    told = {
        "url": f"s3://bucket/{source.folder}/",
        "manifest": str(root / f"manifest-{source.folder}"),
        "cache": str(cache),
        "options": json.dumps(server.options),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "STREAMER_CONFIG": str(root / "streamer.toml"),
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "LOCAL_RANK": str(rank),
            },
        )
        for rank in range(RANKS)
    ]
    time.sleep(3)  # both have imported and constructed: a job builds its model meanwhile
    for process in ranks:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank failed")
    found = [json.loads(answer) for answer in answers]
    seen = {name: digest for one in found for name, digest in one["seen"].items()}
    if seen != expected:
        raise SystemExit(f"{len(expected.items() - seen.items())} of {len(expected)} samples are missing or wrong")
    shutil.rmtree(cache)
    return float(SAMPLES / (max(one["ended"] for one in found) - min(one["began"] for one in found)))


def make_data(root: Path, source: Source) -> dict[str, str]:
    """Writes the objects of a source; returns key -> digest of each sample."""
    folder = root / "bucket" / source.folder
    folder.mkdir(parents=True)
    contents = {f"{number:05}": os.urandom(NBYTES) for number in range(SAMPLES)}
    digests = {name: hashlib.blake2b(content, digest_size=8).hexdigest() for name, content in contents.items()}
    if source.folder == "tars":
        for first in range(0, SAMPLES, TAR_SAMPLES):
            write_tar(folder / f"{first:05}.tar", list(contents.items())[first : first + TAR_SAMPLES])
        return digests
    paths = {name: f"{name}.bin" for name in contents}
    if source.folder == "classes":
        paths = {name: f"class{int(name) % CLASSES}/{name}.bin" for name in contents}
    for name, content in contents.items():
        (folder / paths[name]).parent.mkdir(exist_ok=True)
        (folder / paths[name]).write_bytes(content)
    return {paths[name]: digest for name, digest in digests.items()}


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(f"{name}.bin")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def compare(turns: int, source: Source, processes: int) -> bool:
    """Prints a row for each fault, with this many fetch processes; whether all bounds hold."""
    rates: dict[str, list[float]] = {"no fault": [], **{name: [] for name in source.faults}}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "streamer.toml").write_text(f"[engine]\nfetch_processes = {processes}\n")
        expected = make_data(root, source)
        with simulator(root, *S3_PROFILE) as server:
            server.index(f"s3://bucket/{source.folder}/", root / f"manifest-{source.folder}", root / "index-cache")
            for _ in range(turns):
                for name, found in rates.items():
                    server.set(**{**NO_FAULT, **(source.faults[name][0] if name in source.faults else {})})
                    bring(path for path in (root / "bucket" / source.folder).rglob("*") if path.is_file())
                    os.sync()
                    found.append(measure(root, server, source, expected))
                    print(f"  {source.name}, {name}: {found[-1]:,.0f} samples/s", file=sys.stderr)
    print_clean(source, rates["no fault"])
    held = [print_fault(source, name, rates) for name in source.faults]
    return all(held)


def print_clean(source: Source, rates: list[float]) -> None:
    every = ", ".join(f"{rate:,.0f}" for rate in rates)
    print(f"{label(source, 'no fault'):<22} {statistics.median(rates):7,.0f} samples/s   ({every})")


def print_fault(source: Source, name: str, rates: dict[str, list[float]]) -> bool:
    """One row; whether its bounds hold."""
    clean, bound = statistics.median(rates["no fault"]), source.faults[name][1]
    share, slowest = statistics.median(rates[name]) / clean, min(rates[name]) / clean
    holds = share >= bound and slowest >= source.slowest
    limited = f", bound {source.slowest:.2f}" if source.slowest else ""
    print(
        f"{label(source, name):<22} {share:7.2f} of it, bound {bound:.2f}; slowest {slowest:.2f}{limited}; "
        f"{'holds' if holds else 'MISSED'}   ({', '.join(f'{rate:,.0f}' for rate in rates[name])})"
    )
    return holds


def label(source: Source, name: str) -> str:
    return name if source.name == "raw" else f"{source.name}, {name}"


def main() -> int:
    """Runs the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--mixed", action="store_true", help="2 %% 503, 2 %% resets, 1 %% short bodies, 1 %% slow")
    parser.add_argument("--fetch-processes", type=int, default=0, help="default: 0, the engine's loop fetches")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(json.loads(options.rank))
        return 0
    compile_streamer()
    name, sources = ("rank_faults-mixed", BOTH) if options.mixed else ("rank_faults", SINGLE)
    if options.fetch_processes:
        name += f"-{options.fetch_processes}_processes"
    with kept(name, f"median of {options.turns}", keep=options.turns >= 5):
        held = [compare(options.turns, source, options.fetch_processes) for source in sources]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
