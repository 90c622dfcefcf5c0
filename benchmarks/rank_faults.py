"""A cold epoch of two ranks over raw objects, from a store with faults and without: samples/s, every byte compared.

    S3SIM=path/to/s3sim python benchmarks/rank_faults.py                  five turns, about ten minutes
    S3SIM=path/to/s3sim python benchmarks/rank_faults.py --turns 1

10,000 objects of 110 KB on a simulated S3 (first byte 30 ms, 90 MB/s a connection). Two processes with two workers each
share an engine with an empty cache; the manifest is present. The rate is all samples over the time from the first
`iter()` to the end of the slower rank. Each fault runs in turns with none. Ends with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
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
NO_FAULT = dict.fromkeys(("p_503", "p_reset", "p_truncate"), 0.0)
# No single run may be slower than this share of the rate without faults.
SLOWEST = 0.6


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
    with StreamingDataLoader(dataset, BATCH, WORKERS, report_seconds=None) as loader:
        sys.stdin.readline()
        began = time.monotonic()
        for batch in loader:
            assert isinstance(batch, dict)
            for name, content in zip(batch["__key__"], batch["bin"], strict=True):
                seen[name] = hashlib.blake2b(content, digest_size=8).hexdigest()
        ended = time.monotonic()
    print(json.dumps({"began": began, "ended": ended, "seen": seen}), flush=True)


def measure(root: Path, server: Simulator, expected: dict[str, str]) -> float:
    """Samples per second of one cold epoch of all ranks.

    Raises:
        SystemExit: a rank failed, or a sample is missing or wrong.
    """
    cache = root / "cache"
    told = {
        "url": "s3://bucket/raw/",
        "manifest": str(root / "manifest"),
        "cache": str(cache),
        "options": json.dumps(server.options),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)},
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


def make_data(root: Path) -> dict[str, str]:
    """Writes the objects; returns key -> digest of each."""
    digests = {}
    folder = root / "bucket" / "raw"
    folder.mkdir(parents=True)
    for number in range(SAMPLES):
        content = os.urandom(NBYTES)
        (folder / f"{number:05}.bin").write_bytes(content)
        digests[f"{number:05}.bin"] = hashlib.blake2b(content, digest_size=8).hexdigest()
    return digests


def compare(turns: int) -> bool:
    """Prints a row for each fault; whether all bounds hold."""
    rates: dict[str, list[float]] = {"no fault": [], **{name: [] for name in FAULTS}}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        expected = make_data(root)
        with simulator(root, *S3_PROFILE) as server:
            server.index("s3://bucket/raw/", root / "manifest", root / "index-cache")
            for _ in range(turns):
                for name, found in rates.items():
                    server.set(**{**NO_FAULT, **(FAULTS[name][0] if name in FAULTS else {})})
                    bring((root / "bucket" / "raw").iterdir())
                    os.sync()
                    found.append(measure(root, server, expected))
                    print(f"  {name}: {found[-1]:,.0f} samples/s", file=sys.stderr)
    clean = statistics.median(rates["no fault"])
    print(f"{'no fault':<18} {clean:7,.0f} samples/s   ({', '.join(f'{rate:,.0f}' for rate in rates['no fault'])})")
    held = True
    for name, (_, bound) in FAULTS.items():
        share, slowest = statistics.median(rates[name]) / clean, min(rates[name]) / clean
        holds = share >= bound and slowest >= SLOWEST
        held = held and holds
        print(
            f"{name:<18} {share:7.2f} of it, bound {bound:.2f}; slowest {slowest:.2f}, bound {SLOWEST:.2f}; "
            f"{'holds' if holds else 'MISSED'}   ({', '.join(f'{rate:,.0f}' for rate in rates[name])})"
        )
    return held


def main() -> int:
    """Runs the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(json.loads(options.rank))
        return 0
    compile_streamer()
    with kept("rank_faults", f"median of {options.turns}", keep=options.turns >= 5):
        held = compare(options.turns)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
