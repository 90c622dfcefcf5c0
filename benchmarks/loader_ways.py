"""The ways in which `loader.py` hands batches over, and what each costs: CPU, page faults, pickled bytes."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import checkout  # noqa: F401
import numpy as np
import psutil
import torch
from loader_samples import KINDS, Make
from torch.utils.data import DataLoader, Dataset, default_collate

from streamer.batches.ring import shared_memory as memory
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset

try:
    import spdl.pipeline as spdl
except ImportError:
    spdl = None

WARM_UP = 10
TORCH = "ring+torch"


class BesideTorch:
    """The same from a function whose module imports torch: the worker has it, and seeds its generator too."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def __call__(self, epoch: int, ordinal: int) -> object:
        return self.make(epoch, ordinal)


class Mapped(Dataset[object]):
    """The same samples for a stock DataLoader."""

    def __init__(self, make: Make, samples: int) -> None:
        self.make, self.samples = make, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, ordinal: int) -> object:
        return self.make(0, ordinal)


def collate_copy(samples: list[object]) -> object:
    """As apex and timm do: an empty tensor, filled row by row."""
    fields = {}
    for name, first in samples[0].items():  # type: ignore[attr-defined]
        if isinstance(first, np.ndarray):
            out = torch.empty((len(samples), *first.shape), dtype=torch.from_numpy(first).dtype)
            for row, sample in enumerate(samples):
                out[row] = torch.from_numpy(sample[name])  # type: ignore[index]
            fields[name] = out
        else:
            fields[name] = default_collate([sample[name] for sample in samples])  # type: ignore[index]
    return fields


def collate_numpy(samples: list[object]) -> object:
    """Arrays, as much code does to keep torch out of its transforms."""
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}  # type: ignore[index, attr-defined]
    return {name: np.stack(c) if isinstance(c[0], np.ndarray) else c for name, c in columns.items()}


@dataclass(frozen=True)
class Usage:
    """CPU milliseconds and minor faults of a process so far."""

    cpu: float
    faults: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        """Reads a process: nanoseconds of CPU from its threads' schedstat, faults from its stat."""
        folder = Path(f"/proc/{pid}")
        cpu = sum(int((task / "schedstat").read_text().split()[0]) for task in (folder / "task").iterdir())
        return cls(cpu / 1e6, int((folder / "stat").read_text().rsplit(")", 1)[1].split()[7]))

    def since(self, before: Usage, batches: int) -> Usage:
        """The mean of a batch."""
        return Usage((self.cpu - before.cpu) / batches, round((self.faults - before.faults) / batches, 2))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Row:
    """One line of the table, per batch."""

    main: Usage
    workers: Usage
    wall_milliseconds: float
    pickled: float = float("nan")

    @property
    def cpu(self) -> float:
        """Milliseconds of all processes."""
        return self.main.cpu + self.workers.cpu


def warmed_up(loader: StreamingDataLoader) -> Iterator[object]:
    """Batches, from when all workers and the ring are there, and every slot has been used.

    The second worker starts after the first one, 1.5 s of CPU where a module of its samples imports torch; the ring is
    built by a thread of its own.
    """
    batches = iter(loader)
    while loader.stats().ring_slots == 0 or not all_ready(loader):
        next(batches)
    for _ in range(loader.stats().ring_slots + WARM_UP):
        next(batches)
    return batches


def all_ready(loader: StreamingDataLoader) -> bool:
    pool = loader._supply.feeder._pool  # type: ignore[union-attr]
    return not pool.missing and all(handle.ready for handle in pool.workers.values())


def measure(batches: Iterator[object], pids: Callable[[], list[int]], count: int) -> tuple[Usage, Usage, float]:
    for _ in range(WARM_UP):
        next(batches)
    workers = pids()
    before = [Usage.of(pid) for pid in [os.getpid(), *workers]]
    started = time.perf_counter()
    for _ in range(count):
        batch = next(batches)
    wall = (time.perf_counter() - started) / count * 1e3
    after = [Usage.of(pid) for pid in [os.getpid(), *workers]]
    del batch
    main, *others = [now.since(then, count) for now, then in zip(after, before, strict=True)]
    return main, Usage(sum(u.cpu for u in others), round(sum(u.faults for u in others), 2)), wall  # type: ignore[arg-type]


def children(parent: str = "self") -> list[int]:
    """Returns the processes that a process has started, on whatever thread, and all that those have started."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a process or thread that has just ended
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *children(child)]
    return found


def ours(make: Make, batch_size: int, workers: int, count: int, *, draws: bool = True) -> Row:
    others = set(children())
    with StreamingDataLoader(FakeDataset(10**9, make, draws=draws), batch_size, workers) as loader:
        measured = measure(warmed_up(loader), lambda: sorted(set(children()) - others), count)
        stats = loader.stats()
        return Row(*measured, stats.pickled_bytes / max(stats.batches, 1))


def wrapped(wrapper: Callable[[Make], Make], make: Make, batch_size: int, workers: int, count: int) -> Row:
    return ours(wrapper(make), batch_size, workers, count)


def faults_of_each(kind: str, workers: int, count: int) -> list[int]:
    """Page faults of trainer and workers together over each of so many batches."""
    make, batch_size = KINDS[kind]
    others = set(children())
    with StreamingDataLoader(FakeDataset(10**9, make), batch_size, workers) as loader:
        batches = warmed_up(loader)
        pids, found = [os.getpid(), *(set(children()) - others)], []
        for _ in range(count + 1):
            found.append(sum(Usage.of(pid).faults for pid in pids))
            next(batches)
    differences: list[int] = np.diff(found).tolist()
    return differences


def stock(collate: Callable[[list[object]], object], make: Make, batch_size: int, workers: int, count: int) -> Row:
    samples = batch_size * (WARM_UP + count + 20)
    loader = DataLoader(
        Mapped(make, samples), batch_size, num_workers=workers, collate_fn=collate, multiprocessing_context="forkserver"
    )
    batches = iter(loader)
    return Row(*measure(batches, lambda: [w.pid for w in batches._workers], count))  # type: ignore[attr-defined]


def apart(*arguments: str, file: str = __file__) -> subprocess.Popen[str]:
    """A file as a process of its own, which prints its figures."""
    command = [sys.executable, file, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def answer(process: subprocess.Popen[str]) -> list[float]:
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    found: list[float] = json.loads(out)
    return found


def bare(kind: str, workers: int, count: int) -> Row:
    """The floor: so many processes as there are workers produce and copy at the same time."""
    rows = [answer(process) for process in [apart("bare", kind, str(count)) for _ in range(workers)]]
    cpu, faults, wall = (statistics.mean(column) for column in zip(*rows, strict=True))
    return Row(Usage(0, 0), Usage(cpu, faults), wall / workers)  # type: ignore[arg-type]


def measure_bare(kind: str, count: int) -> list[float]:
    make, batch_size = KINDS[kind]
    first = flat(make(0, 0))
    # As many places as a ring has, so that none is in a CPU cache.
    places = [
        np.ndarray((batch_size, first.nbytes), np.uint8, buffer=mapped(batch_size * first.nbytes)) for _ in range(8)
    ]

    def batches() -> Iterator[object]:
        turn = 0
        while True:
            turn += 1
            samples = [make(0, turn * batch_size + n) for n in range(batch_size)]
            np.stack([flat(sample) for sample in samples], out=places[turn % len(places)])
            yield None

    main, _, wall = measure(batches(), list, count)
    return [main.cpu, main.faults, wall]


def mapped(nbytes: int) -> memory.Bytes:
    count = memory.align_to_page(nbytes)
    return memory.window(memory.map_memfd(memory.create_memfd("bare", count), count), 0, nbytes)


def flat(sample: object) -> np.ndarray:
    """The sample's large field as bytes."""
    first = next(iter(sample.values()))  # type: ignore[attr-defined]
    return np.frombuffer(first, np.uint8)


class Collated:
    """Batches for SPDL's subprocess; iterated over there."""

    def __init__(self, make: Make, batch_size: int) -> None:
        self.make, self.batch_size = make, batch_size

    def __iter__(self) -> Iterator[object]:
        ordinal = 0
        while True:
            samples = [self.make(0, ordinal + n) for n in range(self.batch_size)]
            ordinal += self.batch_size
            yield collate_numpy(samples)


def spdl_pool(kind: str, _workers: int, count: int) -> Row:
    """SPDL's best, in a process of its own: its resource tracker writes a traceback for each segment at the end."""
    main_cpu, main_faults, cpu, faults, wall = answer(apart("spdl", kind, str(count)))
    return Row(Usage(main_cpu, main_faults), Usage(cpu, faults), wall)  # type: ignore[arg-type]


def measure_spdl(kind: str, count: int) -> list[float]:
    """A pool of shared segments from one subprocess (it has no more); views in the trainer."""
    make, batch_size = KINDS[kind]
    one = collate_numpy([make(0, n) for n in range(batch_size)])
    nbytes = sum(array.nbytes for array in one.values() if isinstance(array, np.ndarray))  # type: ignore[attr-defined]
    pool = spdl.SharedMemorySegmentPool(nbytes + (1 << 20), 6)
    batches = iter(spdl.iterate_in_subprocess(partial(Collated, make, batch_size), arena=pool))
    main, workers, wall = measure(batches, lambda: [child.pid for child in psutil.Process().children(True)], count)
    return [main.cpu, main.faults, workers.cpu, workers.faults, wall]


def of_kind(run: Callable[[Make, int, int, int], Row]) -> Way:
    return lambda kind, workers, count: run(*KINDS[kind], workers, count)


# Kind of batch, workers, batches to measure.
Way = Callable[[str, int, int], Row]

WAYS: dict[str, Way] = {
    "bare": bare,
    "ring": of_kind(partial(ours, draws=False)),
    "ring+user": of_kind(ours),
    TORCH: of_kind(partial(wrapped, BesideTorch)),
    "stock": of_kind(partial(stock, default_collate)),
    "stock+copy": of_kind(partial(stock, collate_copy)),
    "stock numpy": of_kind(partial(stock, collate_numpy)),
    **({"spdl pool": spdl_pool} if spdl is not None else {}),
}

if __name__ == "__main__":
    measured = {"bare": measure_bare, "spdl": measure_spdl}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    print(json.dumps(measured), flush=True)
