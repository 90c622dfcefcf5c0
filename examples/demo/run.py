"""Indexes the bucket, starts the ranks with torchrun, kills the engine in the middle, collects what was measured."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.bucket.images import draw_images
from examples.bucket.store import MANIFEST_URL, TARS_URL, Counts, Link, Store, storage_options, upload
from streamer.errors import StreamerError

# A rank has at most 3.7 MB of chunks open, and the catalog beside them (2026-11-23, 8 to 2,000 images, 1 to 8 ranks).
MIN_CACHE_BYTES_PER_RANK = 4_000_000


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of a run; `kill_epoch` counts from 1, and 0 kills nothing."""

    images: int = 2000
    epochs: int = 4
    ranks: int = 2
    # 2,000 images are few: with small batches a step needs few chunks, and much of the cache is left for hits.
    batch_size: int = 16
    seed: int = 17
    kill_epoch: int = 3
    cache_share: float = 0.5
    # An object store's first byte takes 30 ms, and 10 MB/s is what two cores can just train on.
    link: Link = field(default_factory=lambda: Link(first_byte_seconds=0.03, bytes_per_second=10_000_000))


@dataclass
class Epoch:
    """One epoch of all ranks.

    `steps` and `ends` are the ranks' own lines. `store` is what the store sent since the end of the epoch before, and
    `core_busy_share` the share of this machine's cores that was busy in that time. `kept_shares` is what the engine
    says now and then: the share of the data that stays.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    store: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    core_busy_share: float = 0.0
    kept_shares: list[float] = field(default_factory=list)


@dataclass
class Measured:
    """The whole run."""

    options: DemoOptions
    dataset_bytes: int
    cache_bytes: int
    index: Counts = field(default_factory=Counts)
    epochs: list[Epoch] = field(default_factory=list)
    killed: dict[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """Computes one digest of all sample keys in their order, over epochs and ranks."""
        keys = [epoch.ends[rank]["keys"] for epoch in self.epochs for rank in sorted(epoch.ends)]
        return hashlib.blake2b("".join(keys).encode(), digest_size=8).hexdigest()


def run_demo(options: DemoOptions, show: Callable[[str], None] = print) -> Measured:
    """Runs the whole demo; a part that fails raises StreamerError with the end of its log."""
    with tempfile.TemporaryDirectory(prefix="streamer-demo-") as folder, Store(options.link) as store:
        delay_seconds, rate = options.link
        speed = f"{rate / 1e6:.1f} MB/s in all" if rate else "as fast as it goes"
        show(f"S3 server at {store.endpoint}: first byte after {delay_seconds * 1000:.0f} ms, {speed}")
        dataset_bytes = upload(store.endpoint, draw_images(options.images, options.seed))
        show(f"{options.images:,} images drawn and uploaded, {dataset_bytes / 1e6:.1f} MB of tars")
        cache_bytes = max(int(options.cache_share * dataset_bytes), MIN_CACHE_BYTES_PER_RANK * options.ranks)
        measured = Measured(options, dataset_bytes, cache_bytes)
        run = Run(measured, store, Path(folder), show)
        run.index()
        run.train()
        run.await_end_of_engine()
        return measured


class Run:
    """One training run under observation."""

    def __init__(self, measured: Measured, store: Store, folder: Path, show: Callable[[str], None]) -> None:
        self._measured = measured
        self._options = measured.options
        self._store = store
        self._folder = folder
        self._show = show
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "STREAMER_ENGINE"},
            "STREAMER_CACHE_DIR": str(folder / "cache"),
            "STREAMER_RUNTIME_DIR": str(folder / "run"),
            "OMP_NUM_THREADS": "1",
            # The ranks of one machine; a host name that does not resolve must not stop the demo.
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self._batches = 0
        self._pid = 0

    def index(self) -> None:
        """Runs `streamer index`, once for a dataset; in another cache, so that epoch 1 begins with an empty one."""
        before = self._store.counts()
        options = self._folder / "options.json"
        options.write_text(json.dumps(storage_options(self._store.endpoint)))
        cache = ["--cache-dir", str(self._folder / "index")]
        said = self._streamer("index", TARS_URL, "--out", MANIFEST_URL, "--storage-options", f"@{options}", *cache)
        self._measured.index = self._store.counts().since(before)
        self._show(f"indexed: {said.splitlines()[0]}")

    def train(self) -> None:
        """Runs torchrun, and follows what its ranks say until they end."""
        settings = {name: getattr(self._options, name) for name in ("seed", "epochs", "batch_size")}
        settings |= {"url": TARS_URL, "manifest": MANIFEST_URL, "cache_bytes": self._measured.cache_bytes}
        file = self._folder / "settings.json"
        file.write_text(json.dumps({**settings, "storage_options": storage_options(self._store.endpoint)}))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(self._options.ranks), "-m", "examples.demo.train", str(file)]
        log = self._folder / "ranks.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=self._environment)
        assert process.stdout is not None
        try:
            self._follow(json.loads(line) for line in process.stdout if line.startswith(b"{"))
        finally:
            # torchrun passes the signal on and waits for its ranks; where all went well, it has ended already.
            process.terminate()
            process.communicate()
        if len(self._measured.epochs) < self._options.epochs:
            raise StreamerError(f"the ranks have ended too early:\n{log.read_text(errors='replace')[-3000:]}")

    def _follow(self, events: Iterable[dict[str, Any]]) -> None:
        """Takes what the ranks say; an epoch is complete when every rank has reported its end."""
        epochs = [Epoch() for _ in range(self._options.epochs)]
        before = self._look()
        for event in events:
            if "batches" in event:
                self._batches = event["batches"]
                if not self._pid:
                    before = self._look()
                    self._pid = self._engine_pid()
            elif "keys" not in event:
                self._take_step(epochs[event["epoch"]], event)
            else:
                epoch = epochs[event["epoch"]]
                epoch.ends[event["rank"]] = event
                if len(epoch.ends) == self._options.ranks:
                    now = self._look()
                    epoch.seconds = now[0] - before[0]
                    epoch.core_busy_share = (now[1] - before[1]) / epoch.seconds / (os.cpu_count() or 1)
                    epoch.store = now[2].since(before[2])
                    before = now
                    self._end_epoch(epoch)

    def _take_step(self, epoch: Epoch, step: dict[str, Any]) -> None:
        epoch.steps.append(step)
        if (kept_share := step.pop("kept_share")) is not None:
            epoch.kept_shares.append(kept_share)
        number = step["epoch"] + 1
        if (number, step["rank"], step["batch"]) == (self._options.kill_epoch, 0, self._batches // 2):
            os.kill(self._pid, signal.SIGKILL)
            self._measured.killed = {"pid": self._pid, "epoch": number, "at_seconds": time.monotonic()}
            self._show(f"epoch {number}, batch {step['batch']}: engine {self._pid} killed with SIGKILL")

    def _end_epoch(self, epoch: Epoch) -> None:
        self._measured.epochs.append(epoch)
        number = len(self._measured.epochs)
        self._show(f"epoch {number} of {self._options.epochs}: loss {epoch.steps[-1]['loss']:.2f}")
        if number == self._options.kill_epoch:
            self._pid = self._measured.killed["successor"] = self._engine_pid()

    def await_end_of_engine(self) -> None:
        """Waits until the engine leaves, 3 s after its last connection; only then its folder can be removed."""
        deadline = time.monotonic() + 60
        while self._engine_pid():
            if time.monotonic() > deadline:
                raise StreamerError("the engine still runs 60 s after the last epoch")
            # Each look is a connection, after which the engine waits for 3 s.
            time.sleep(4)

    def _look(self) -> tuple[float, float, Counts]:
        """Reads the clock, the seconds that all cores of this machine were busy, and the counts of the store."""
        ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        busy_ticks = sum(ticks) - ticks[3] - ticks[4]  # without idle and iowait
        return time.monotonic(), busy_ticks / os.sysconf("SC_CLK_TCK"), self._store.counts()

    def _engine_pid(self) -> int:
        """Returns the pid of the engine that runs now, or 0 where none does."""
        try:
            return int(json.loads(self._streamer("stat", "--json"))["pid"])
        except StreamerError:
            return 0

    def _streamer(self, *arguments: str) -> str:
        """Runs a command of streamer and returns what it prints."""
        command = [sys.executable, "-m", "streamer", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=self._environment)
        if done.returncode:
            raise StreamerError(f"streamer {arguments[0]} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout
