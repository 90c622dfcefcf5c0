"""Small caches: what a second epoch hits, beside what fits next to the chunks that must be open.

    python benchmarks/small_caches.py [--chunks 100 300 1000] [--real] [--delay 0.01] [--rate 50]

Simulated: ranks of one job drive the real order, scheduler and policy in virtual time (tests/simulation/ranks.py); the
link has a rate and a delay, chunks are of 1 MiB. `bound` is (C - O) / D: the cache less the most bytes that all ranks
together must have open at one step, each chunk once, as a share of the data. S is what the cache has set aside in the
end, in chunks; `seconds` are those of the cold and of the second epoch.
With --real ranks in one process read 64 MB of tars through an engine from a simulated S3; the store counts the bytes of
each epoch, look-ahead into the next one included, so that hits are those of the second to the fourth epoch together.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import checkout  # noqa: F401
import numpy as np
from report import kept
from s3sim import Simulator, simulator

from streamer import StreamingDataLoader, StreamingDataset
from streamer.cache.disk_space import FIXED_BYTES
from streamer.cache.folder import measure_usage
from streamer.errors import CacheFullError
from streamer.manifest.table import Manifest
from streamer.order import EpochOrder, OrderSpec, RankPlan
from streamer.wire.schedule import EpochSchedule
from tests.simulation.ranks import SimulatedEngine, SimulatedJob, count_together

SHARES = (0.1, 0.25, 0.5, 0.75)
RANKS = (1, 2, 4, 8)
EPOCHS = 4
BATCH = 16


def simulate(chunks: int, ranks: int, share: float, rate: float, delay: float) -> str:
    """A row of the first table."""
    job = SimulatedJob(
        chunks=chunks, cache_share=share, ranks=ranks, bytes_per_second=1e6 * rate, delay_seconds=delay, epochs=2
    )
    engine = SimulatedEngine(job)
    row = f"{chunks:6}  {ranks:5}  {share:5.2f}"
    try:
        engine.run()
    except CacheFullError:
        return f"{row}  refused: the open chunks of all ranks side by side do not fit"
    mean = float(engine.cost.mean())
    cold, warm = engine.epoch_seconds
    off = engine.hits(1) - engine.bound(1)
    return (
        f"{row}  {engine.must_be_open_bytes(1) / mean:6.1f}  {engine.policy.statistics().staging_bytes / mean:6.1f}"
        f"  {engine.bound(1):6.3f}  {engine.hits(1):6.3f}  {100 * off:+6.1f}  {cold:7.2f}  {warm:7.2f}"
        f"{'' if off >= -0.02 else '  MISS'}"
    )


HEADER = """\
chunks  ranks  cache     open       S   bound    hits  points  seconds of epochs
                C/D    chunks  chunks (C-O)/D   of 2nd            1        2"""


def make_tars(root: Path) -> int:
    """Writes 64 MB of tars with samples of about 32 KB; returns their bytes."""
    folder = root / "bucket" / "train"
    folder.mkdir(parents=True)
    random = np.random.default_rng(7)
    for shard in range(16):
        with tarfile.open(folder / f"{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(125):
                body = random.bytes(int(random.integers(16_000, 48_000)))
                member = tarfile.TarInfo(f"{shard:03}-{sample:04}.bin")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
    return sum(path.stat().st_size for path in folder.iterdir())


def read(root: Path, server: Simulator, ranks: int, share: float, total_bytes: int) -> str:
    """A row of the second table: ranks in step in this process, through an engine of their own."""
    cache_bytes = int(share * total_bytes)
    sent = []
    with tempfile.TemporaryDirectory(dir=root) as cache:
        loaders = [
            StreamingDataLoader(
                StreamingDataset(
                    "s3://bucket/train/",
                    manifest=str(root / "manifest"),
                    cache_dir=cache,
                    cache_bytes=cache_bytes,
                    storage_options=server.options,
                    decode=None,
                    engine="inline",
                    rank=rank,
                    world_size=ranks,
                ),
                BATCH,
                0,
                report_every=None,
            )
            for rank in range(ranks)
        ]
        before = server.statistics()["body_bytes_sent"]
        try:
            for _ in range(EPOCHS):
                for _ in zip(*loaders, strict=True):
                    pass
                now = server.statistics()["body_bytes_sent"]
                sent.append(int(str(now)) - int(str(before)))
                before = now
        except CacheFullError:
            return f"{ranks:5}  {share:5.2f}  refused"
        finally:
            for loader in loaders:
                loader.close()
                loader.dataset.close()
    bound = bound_of(Manifest.open(root / "manifest"), ranks, cache_bytes)
    hits = 1 - sum(sent[1:]) / (EPOCHS - 1) / total_bytes
    counted = "  ".join(f"{size / 1e6:6.1f}" for size in sent)
    return f"{ranks:5}  {share:5.2f}  {bound:6.3f}  {hits:6.3f}  {100 * (hits - bound):+6.1f}   {counted}"


def bound_of(manifest: Manifest, ranks: int, cache_bytes: int) -> float:
    """(C - O) / D of these ranks; C is without manifest and catalog."""
    spec = OrderSpec.auto(manifest.digest, manifest.chunk_samples, BATCH * ranks, 0, True)
    order = EpochOrder(spec, manifest.chunk_samples, 1)
    plans = [RankPlan(order, BATCH * ranks, ranks, rank).schedule() for rank in range(ranks)]
    schedules = [EpochSchedule(1, plan.chunk, plan.first, plan.last) for plan in plans]
    sizes = np.asarray(manifest.chunk_local_bytes, np.int64)
    chunks_bytes = cache_bytes - FIXED_BYTES - measure_usage(manifest.path)
    return max(0.0, (chunks_bytes - count_together(schedules, sizes)) / float(sizes.sum()))


def measure(rate: float, delay: float) -> Iterator[str]:
    """The second table."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["STREAMER_JOB"] = "small"
        os.environ["STREAMER_RUNTIME_DIR"] = str(root / "run")
        total_bytes = make_tars(root)
        with simulator(root, "--ttfb-ms", str(1000 * delay), "--total-mbps", str(rate)) as server:
            server.index("s3://bucket/train/", root / "manifest", root / "index-cache")
            chunks = Manifest.open(root / "manifest").chunks
            yield f"64 MB in {chunks} chunks from a simulated S3 of {rate:g} MB/s, first byte after {delay:g} s"
            yield "ranks  cache   bound    hits  points   MB of epochs 1 to 4 by the store's count"
            for ranks in (1, 2, 8):
                for share in SHARES:
                    yield read(root, server, ranks, share, total_bytes)


def main() -> None:
    """Prints the tables of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="*", default=[100, 300, 1000])
    parser.add_argument("--ranks", type=int, nargs="*", default=list(RANKS))
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--rate", type=float, default=50, help="MB/s of the link")
    parser.add_argument("--delay", type=float, default=0.01, help="seconds to the first byte")
    parser.add_argument("--no-keep", action="store_true", help="print only")
    arguments = parser.parse_args()
    name = "small_caches" + ("-real" if arguments.real else "")
    with kept(name, json.dumps({"MB/s": arguments.rate, "delay": arguments.delay}), keep=not arguments.no_keep):
        if arguments.real:
            for line in measure(arguments.rate, arguments.delay):
                print(line)
            return
        print(HEADER)
        for chunks in arguments.chunks:
            for ranks in arguments.ranks:
                for share in SHARES:
                    print(simulate(chunks, ranks, share, arguments.rate, arguments.delay))


if __name__ == "__main__":
    main()
