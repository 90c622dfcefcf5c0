"""Starts the demo's processes, kills the engine in the middle, and collects what was measured."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from streamer.client.settings import ClientSettings
from streamer.config import format_bytes
from streamer.errors import StreamerError
from streamer.tools.demo.bucket import FOLDER_URL, MANIFEST_URL, TARS_URL, Uploaded, fill, storage_options
from streamer.tools.demo.drawing import pictures
from streamer.tools.demo.engine_watch import EngineWatch, end_of
from streamer.tools.demo.events import EpochEnd, Event, Indexed, Settings, Step, receive
from streamer.tools.demo.measured import Collector, EpochRow, Measured
from streamer.tools.demo.server import Counts, DemoServer, Link

# A rank has at most 3.7 MB of chunks open, and the catalog beside them (2026-11-23, 8 to 2,000 images, 1 to 8 ranks).
LEAST_CACHE_BYTES = 4_000_000
# The engine leaves this long after its last connection (3 s of grace), with room for a busy machine.
LEAVE_SECONDS = 30.0
LOG_CHARACTERS = 10_000

logger = logging.getLogger(__name__)


class Progress(Protocol):
    """The progress of a running task."""

    def update(self, done: float, total: float | None, text: str = "") -> None:
        """Reports that `done` of `total` units are finished."""
        ...


class Screen(Protocol):
    """The output of the demo."""

    def note(self, text: str) -> None:
        """Shows a line."""
        ...

    def progress(self, title: str, unit: str) -> AbstractContextManager[Progress]:
        """Shows a bar for one task."""
        ...


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of a run.

    Attributes:
        kill_epoch: the epoch, from 1, in whose middle the engine is killed; 0: never.
        cache_share: limit of the cache as a share of the data; never less than what all ranks have open.
    """

    images: int = 2000
    epochs: int = 4
    ranks: int = 2
    workers: int = 1
    # 2,000 images are few: with small batches a step needs few chunks, and much of the cache is left for hits.
    batch_size: int = 16
    seed: int = 17
    kill_epoch: int = 3
    layout: Literal["tars", "folder"] = "tars"
    cache_share: float = 0.5
    # An object store's first byte takes 30 ms. 10 MB/s is what two cores can just train on: one sees the store
    # hold the first epoch back, and the cache relieve the later ones.
    link: Link = field(default_factory=lambda: Link(first_byte_seconds=0.03, bytes_per_second=10_000_000))


def run_demo(options: DemoOptions, screen: Screen) -> Measured:
    """Runs the whole demo.

    Raises:
        StreamerError: a part of it failed; the message has the end of the ranks' log.
    """
    with tempfile.TemporaryDirectory(prefix="streamer-demo-") as folder, DemoServer(options.link) as server:
        link = options.link
        rate = options.link.bytes_per_second
        speed = f"{format_bytes(rate)}/s in all" if rate else "as fast as it goes"
        screen.note(
            f"S3 server at {server.endpoint}: first byte after {link.first_byte_seconds * 1000:.0f} ms, {speed}"
        )
        uploaded = _upload(options, server, screen)
        return _Run(options, screen, server, Path(folder), uploaded).measure()


def _upload(options: DemoOptions, server: DemoServer, screen: Screen) -> Uploaded:
    with screen.progress("drawing and uploading", "images") as bar:
        uploaded = fill(
            server.endpoint, pictures(options.images, options.seed), lambda done: bar.update(done, options.images)
        )
    screen.note(
        f"{uploaded.images:,} images in {uploaded.objects:,} objects: {format_bytes(uploaded.tar_bytes)} of tars, "
        f"{format_bytes(uploaded.folder_bytes)} in class folders"
    )
    return uploaded


class _Run:
    """One training run under observation."""

    def __init__(
        self, options: DemoOptions, screen: Screen, server: DemoServer, folder: Path, uploaded: Uploaded
    ) -> None:
        self._options = options
        self._screen = screen
        self._server = server
        self._folder = folder
        self._dataset_bytes = uploaded.tar_bytes if options.layout == "tars" else uploaded.folder_bytes
        self._cache_bytes = max(int(self._dataset_bytes * options.cache_share), LEAST_CACHE_BYTES * options.ranks)
        self._engine = EngineWatch(ClientSettings(cache_dir=folder / "cache", runtime_dir=folder / "run"))
        self._collector = Collector(options.ranks)
        self._counted = server.counts()
        self._index = Counts()
        self._rows: list[EpochRow] = []
        self._batches = 0
        self._log = folder / "ranks.log"
        self._url = TARS_URL if options.layout == "tars" else FOLDER_URL

    def measure(self) -> Measured:
        self._build_index()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as events:
            events.bind(str(self._folder / "events"))
            events.setblocking(False)
            with self._training() as process:
                self._watch(events, process)
                chunks = self._engine.chunks()
        self._engine.await_gone(LEAVE_SECONDS)
        return Measured(
            dataset_bytes=self._dataset_bytes,
            cache_bytes=self._cache_bytes,
            chunks=chunks,
            index=self._index,
            rows=self._rows,
            steps=self._collector.steps,
            kill=self._engine.kill_seen,
            keys=self._collector.keys(),
        )

    def _build_index(self) -> None:
        """Runs `streamer index`, as one does once for a dataset; in another cache, so that epoch 1 begins with none."""
        options = self._folder / "options.json"
        options.write_text(json.dumps(storage_options(self._server.endpoint)))
        command = [sys.executable, "-m", "streamer", "index", self._url, "--out", MANIFEST_URL]
        command += ["--storage-options", f"@{options}", "--cache-dir", str(self._folder / "index")]
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self._environment()
        )
        if done.returncode:
            raise StreamerError(f"streamer index ended with {done.returncode}: {done.stderr.strip()}")
        self._screen.note(f"indexed: {done.stdout.splitlines()[0]}")

    # ------------------------------------------------------------ the ranks

    @contextlib.contextmanager
    def _training(self) -> Iterator[subprocess.Popen[bytes]]:
        """Runs torchrun with its ranks; ends it in any case."""
        settings = self._folder / "settings.json"
        settings.write_bytes(msgspec.json.encode(self._settings()))
        ranks = ["--standalone", "--nproc-per-node", str(self._options.ranks)]
        launch = [sys.executable, "-m", "torch.distributed.run", *ranks]
        command = [*launch, "-m", "streamer.tools.demo.train", str(settings)]
        with open(self._log, "wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment()
            )
        try:
            yield process
        finally:
            # torchrun passes the signal on and waits for its ranks.
            process.terminate()
            process.wait()

    def _settings(self) -> Settings:
        options = self._options
        return Settings(
            url=self._url,
            manifest=MANIFEST_URL,
            storage_options=storage_options(self._server.endpoint),
            cache_bytes=self._cache_bytes,
            seed=options.seed,
            epochs=options.epochs,
            batch_size=options.batch_size,
            workers=options.workers,
            events=str(self._folder / "events"),
        )

    def _environment(self) -> Mapping[str, str]:
        own = {
            "STREAMER_CACHE_DIR": str(self._folder / "cache"),
            "STREAMER_RUNTIME_DIR": str(self._folder / "run"),
            "OMP_NUM_THREADS": "1",
            # The ranks of one machine; a host name that does not resolve must not stop the demo.
            "GLOO_SOCKET_IFNAME": "lo",
        }
        return {**{name: value for name, value in os.environ.items() if name != "STREAMER_ENGINE"}, **own}

    # ------------------------------------------------------------ events

    def _watch(self, events: socket.socket, process: subprocess.Popen[bytes]) -> None:
        """Receives events until the last epoch has ended."""
        with end_of(process.pid) as ended:
            for epoch in range(self._options.epochs):
                with self._screen.progress(f"epoch {epoch + 1}", "images") as bar:
                    while len(self._rows) == epoch:
                        self._take(event := self._next(events, ended))
                        if isinstance(event, Step):
                            steps = self._collector.steps
                            done = sum(step.samples for step in steps if step.epoch == event.epoch)
                            bar.update(done, self._options.images, f"loss {event.loss:.2f}")

    def _next(self, events: socket.socket, ended: int) -> Event:
        while (event := receive(events)) is None:
            readable, _, _ = select.select([events.fileno(), ended], [], [])
            if readable == [ended]:
                logger.info("the ranks' log:\n%s", self._log.read_text(errors="replace")[-LOG_CHARACTERS:])
                raise StreamerError(f"the ranks ended in epoch {len(self._rows) + 1} (--debug shows their log)")
        return event

    def _take(self, event: Event) -> None:
        complete = self._collector.take(event)
        match event:
            case Indexed() if complete:
                self._batches = event.batches
                self._index = self._since()
            case EpochEnd() if complete:
                self._rows.append(self._collector.row(event.epoch, self._engine.usage_since(), self._since()))
            case Step(rank=0) if (event.epoch + 1, event.batch) == (self._options.kill_epoch, self._batches // 2):
                self._screen.note(f"epoch {event.epoch + 1}, batch {event.batch}: {self._engine.kill(event.epoch)}")

    def _since(self) -> Counts:
        """The requests that the store has served since the last call."""
        before, self._counted = self._counted, self._server.counts()
        return self._counted - before
