"""From bucket to batch, end to end: samples per second of a cold and of warm epochs, beside local files.

    S3SIM=path/to/s3sim python benchmarks/stream.py [--samples 10000] [--workers 2] [--keep FOLDER]

10,000 samples of 110 KB in tars on a simulated S3 (first byte 30 ms, 90 MB/s a connection), raw bytes, batch 64, the
manifest present, a fresh cache. Beside it a stock DataLoader over the same samples as files on the local disk: its
first epoch reads the disk, as everything does that is larger than memory, the others what is in memory by then.
Store, engine, rank and workers share the cores of one machine: what each of them took of the CPU is in the table.
A cold epoch lasts two seconds, of which the start is a sixth: --samples 40000 for what it is without.
A first epoch takes pages for all that it reads, ours and the stock loader's: from a reserve that this machine holds
(`memory.py`), because many hosts hand pages out at the first touch, which then costs more CPU than all the rest.
Each turn has a cache of its own, and all are removed in the end: for minutes after many files were removed ext4 looks
at their inodes one by one for each file that it makes (5 % of the engine's CPU, 2026-11-22).
Prints a table and keeps it in benchmarks/results/stream-<date>.txt.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from bytecode import compile_streamer
from memory import Reserve, bring, drop
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator

SHARD_SAMPLES = 560
BATCH = 64
# Whose CPU is told apart.
PROCESSES = ("store", "engine", "rank", "workers")
# Above the largest pid of Linux (2^22).
_NOBODY = 1 << 30


def make_data(root: Path, samples: int) -> None:
    """The same bytes as tars in a bucket and as files in folders."""
    random = np.random.default_rng(1)
    sizes = np.clip(random.lognormal(np.log(105_000), 0.3, samples), 20_000, 400_000).astype(int)
    (root / "bucket" / "train").mkdir(parents=True)
    for first in range(0, samples, SHARD_SAMPLES):
        with tarfile.open(root / "bucket" / "train" / f"{first // SHARD_SAMPLES:04}.tar", "w") as tar:
            for number in range(first, min(first + SHARD_SAMPLES, samples)):
                content = random.bytes(int(sizes[number]))
                _add(tar, f"{number:06}.jpg", content)
                _add(tar, f"{number:06}.cls", str(number % 10).encode())
                path = root / "files" / f"{number % 100:02}" / f"{number:06}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


# ---------------------------------------------------------------- the measured processes


def run_streamer(arguments: argparse.Namespace) -> Iterator[dict[str, float]]:
    """One trainer; a line per epoch."""
    from streamer import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        "s3://bucket/train/",
        manifest=arguments.manifest,
        cache_dir=arguments.cache,
        cache_bytes=arguments.cache_bytes,
        storage_options=json.loads(arguments.options),
        decode=None,
    )
    with StreamingDataLoader(dataset, batch_size=BATCH, num_workers=arguments.workers) as loader:
        for epoch in range(arguments.epochs):
            yield from _measure(loader, epoch, lambda: engine_of(arguments.cache))


def _children(engine: int) -> list[int]:
    """Its fetch processes."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(engine).children()]
    return []


def engine_of(cache_dir: str) -> int:
    """The process of the engine; a number that no process has, if there is none."""
    from streamer.client.connection import read_statistics
    from streamer.client.settings import ClientSettings

    values = read_statistics(replace(ClientSettings.from_environment(), cache_dir=Path(cache_dir)), 5.0)
    return int(str((values or {}).get("pid", _NOBODY)))


def run_local(arguments: argparse.Namespace) -> Iterator[dict[str, float]]:
    """A stock DataLoader over files on the local disk."""
    import torch.utils.data

    loader = torch.utils.data.DataLoader(
        LocalFiles(Path(arguments.files)),
        batch_size=BATCH,
        shuffle=True,
        num_workers=arguments.workers,
        persistent_workers=True,
        collate_fn=as_columns,
    )
    for epoch in range(arguments.epochs):
        yield from _measure(loader, epoch)


class LocalFiles:
    """Samples as files: what the local disk allows."""

    def __init__(self, root: Path) -> None:
        self._paths = sorted(map(str, root.rglob("*.jpg")))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, object]:
        with open(self._paths[index], "rb") as file:
            return {"jpg": file.read(), "cls": index}


def as_columns(samples: list[dict[str, object]]) -> dict[str, list[object]]:
    """What default_collate makes of bytes."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def _measure(loader: object, epoch: int, engine: Callable[[], int] = lambda: _NOBODY) -> Iterator[dict[str, float]]:
    with contextlib.nullcontext() if epoch else Reserve():
        before = _spent(engine() if epoch else _NOBODY)
        started, count, size, first = time.perf_counter(), 0, 0, 0.0
        for batch in loader:  # type: ignore[attr-defined]
            first = first or time.perf_counter() - started
            count += len(batch["jpg"])
            size += sum(map(len, batch["jpg"]))
        seconds = time.perf_counter() - started
    after = _spent(engine())
    yield {
        "epoch": epoch + 1,
        "samples_per_second": count / seconds,
        "seconds": seconds,
        "first_batch_seconds": first,
        "samples": count,
        "bytes": size,
        **{f"{who}_cpu": after[who] - before[who] for who in after},
    }


def _spent(engine: int) -> dict[str, float]:
    """CPU seconds so far. What was reaped is the half of the engine that forked and left."""
    rank = psutil.Process()
    times = rank.cpu_times()
    return {
        "rank": times.user + times.system,
        "workers": cpu_seconds(child.pid for child in rank.children()),
        "engine": cpu_seconds([engine, *_children(engine)]) + times.children_user + times.children_system,
    }


def cpu_seconds(processes: Iterable[int]) -> float:
    """What the kernel counts so far, to 10 ms for each process; one that is gone counts nothing."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(process).cpu_times()
            total += times.user + times.system
    return total


# ---------------------------------------------------------------- the comparison


def measure(kind: str, *arguments: str, server: Simulator | None = None) -> list[dict[str, float]]:
    """Runs one kind in a fresh process; adds what the server counted to each epoch."""
    if server is not None:
        server.statistics(reset=True)
        # Once: to find them takes 0.1 s of CPU, which the next epoch would miss.
        stores = server.processes
        spent = cpu_seconds(stores)
    process = subprocess.Popen([sys.executable, __file__, "--run", kind, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    rows = []
    for line in process.stdout:
        row = json.loads(line)
        if server is not None:
            counted = server.statistics(reset=True)
            row["requests"] = counted["object_gets"]
            row["sent_bytes"] = counted["body_bytes_sent"]
            before, spent = spent, cpu_seconds(stores)
            row["store_cpu"] = spent - before
        rows.append(row)
    if process.wait():
        raise SystemExit(f"{kind} failed with status {process.returncode}")
    return rows


def table(rows: dict[str, list[dict[str, float]]]) -> str:
    """One line per kind and epoch."""
    spent = " ".join(f"{who:>7}" for who in PROCESSES)
    lines = [
        f"{'':81} CPU seconds of",
        f"{'what':34} {'epoch':>5} {'samples/s':>10} {'first batch':>12} {'store MB':>9} {'GETs':>6} {spent}  cores",
    ]
    for name, epochs in rows.items():
        for row in epochs:
            sent = f"{row['sent_bytes'] / 1e6:9.1f}" if "sent_bytes" in row else " " * 9
            spent = " ".join(f"{row[f'{who}_cpu']:7.2f}" if f"{who}_cpu" in row else " " * 7 for who in PROCESSES)
            lines.append(
                f"{name:34} {row['epoch']:5.0f} {row['samples_per_second']:10,.0f} {row['first_batch_seconds']:10.2f} s"
                f" {sent} {row.get('requests', ''):>6} {spent} {_cpu(row) / row['seconds']:6.2f}"
            )
    return "\n".join(lines)


def _cpu(row: dict[str, float]) -> float:
    """CPU seconds of all processes of an epoch."""
    return sum(row.get(f"{who}_cpu", 0.0) for who in PROCESSES)


def bounds(rows: dict[str, list[dict[str, float]]]) -> str:
    """What was to be shown, by medians over the turns: a cold epoch begins with no engine running."""
    ours = [epochs for name, epochs in rows.items() if name.startswith("streamer")]
    stock = [epochs for name, epochs in rows.items() if "local" in name]
    disk = statistics.median(epochs[0]["samples_per_second"] for epochs in stock)
    local = statistics.median(row["samples_per_second"] for epochs in stock for row in epochs[1:])
    cold = statistics.median(epochs[0]["samples_per_second"] for epochs in ours)
    warm = statistics.median(row["samples_per_second"] for epochs in ours for row in epochs[1:])
    first = statistics.median(epochs[0]["first_batch_seconds"] for epochs in ours)
    shown = (
        (cold >= 4000, f"cold epoch: {cold:,.0f} samples/s (>= 4,000), the engine's start included"),
        (cold >= 0.9 * disk, f"cold epoch: {cold / disk:.2f} of local files' rate from the disk (>= 0.9)"),
        (cold >= 0.9 * local, f"cold epoch: {cold / local:.2f} of local files' rate from memory (>= 0.9)"),
        (warm >= 2.5 * local, f"warm epochs: {warm / local:.2f} of local files' rate from memory (>= 2.5)"),
        (first <= 0.3, f"first batch of the cold epoch: {first:.2f} s after iter() (<= 0.3), engine's start included"),
    )
    lines = [f"{'ok  ' if met else 'MISS'} {text}" for met, text in shown]
    return "\n".join([*lines, *budget([epochs[0] for epochs in ours], disk)])


def budget(cold: list[dict[str, float]], disk: float) -> Iterator[str]:
    """Where the CPU of a cold epoch went, and what the same seconds make without the store's, which is no trainer's.

    Args:
        cold: the first epochs.
        disk: samples per second of local files that the disk reads.
    """
    total = statistics.median(map(_cpu, cold))
    spent = {who: statistics.median(row[f"{who}_cpu"] for row in cold) for who in PROCESSES}
    shares = ", ".join(f"{who} {seconds:.2f} ({seconds / total:.0%})" for who, seconds in spent.items())
    busy = statistics.median(_cpu(row) / row["seconds"] for row in cold)
    yield f"cold epoch's CPU: {total:.2f} s = {shares}; {busy:.2f} of {os.cpu_count()} cores busy"
    ours = total - spent["store"]
    rate = cold[0]["samples"] * busy / ours
    yield (
        f"with the store elsewhere and {busy:.2f} cores as busy: {cold[0]['samples']:.0f} samples / ({ours:.2f} CPU s /"
        f" {busy:.2f}) = {rate:,.0f} samples/s, {rate / disk:.2f} of theirs from the disk (computed, not measured)"
    )


def compare(arguments: argparse.Namespace) -> None:
    """The whole benchmark."""
    compile_streamer()
    root = Path(arguments.keep or tempfile.mkdtemp(prefix="streamer-bench-"))
    try:
        if not (root / "bucket").exists():
            make_data(root, arguments.samples)
        with simulator(root, *S3_PROFILE, command=arguments.s3sim) as server:
            rows = _turns(root, server, arguments)
        with kept("stream"):
            print(table(rows))
            if arguments.epochs > 1:
                print(bounds(rows))
    finally:
        if not arguments.keep:
            shutil.rmtree(root)


def _turns(root: Path, server: Simulator, arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    options = json.dumps(server.options)
    manifest = root / "manifest"
    server.index("s3://bucket/train/", manifest, root / "index-cache")
    rows: dict[str, list[dict[str, float]]] = {}
    caches = root / "caches"
    shutil.rmtree(caches, ignore_errors=True)
    common = ("--workers", str(arguments.workers), "--epochs", str(arguments.epochs))
    for turn in range(arguments.turns):
        bring((root / "bucket" / "train").iterdir())
        # What the turn before left to the disk is written now, not beside the first batch of this one.
        os.sync()
        rows[f"streamer, turn {turn + 1}"] = measure(
            "streamer",
            "--manifest",
            str(manifest),
            "--cache",
            str(caches / str(turn + 1)),
            "--options",
            options,
            *common,
            server=server,
        )
        drop((root / "files").rglob("*.jpg"))
        rows[f"stock DataLoader, local files, {turn + 1}"] = measure("local", "--files", str(root / "files"), *common)
    shutil.rmtree(caches)
    return rows


def main() -> None:
    """Parses the command line; `--run` is for the processes that it starts itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--keep", help="folder for the data, kept for the next run")
    parser.add_argument("--s3sim", help="path of the simulator's command; default $S3SIM")
    for hidden in ("--run", "--manifest", "--cache", "--options", "--files", "--cache-bytes"):
        parser.add_argument(hidden, default="auto" if hidden == "--cache-bytes" else None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run is None:
        compare(arguments)
        return
    for row in (run_streamer if arguments.run == "streamer" else run_local)(arguments):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
