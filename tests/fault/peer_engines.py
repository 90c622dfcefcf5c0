"""Engines that share their caches, the store they read, and trainers that read through them; all as processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from examples.fleet.run import free_ports
from streamer.cache.disk_space import FIXED_BYTES
from streamer.cache.policy.table import charge
from streamer.formats.chunkfile import file_bytes
from tests.fault.json_process import JsonProcess
from tests.fault.namespaces import Namespaces
from tests.fault.peer_reader import SAMPLE_BYTES, sample

MiB = 1 << 20
URL = "s3://bucket/train/"


def storage_options(endpoint: str) -> dict[str, str]:
    """What reads `URL`."""
    return {"key": "key", "secret": "secret", "endpoint_url": endpoint}


class Store:
    """s3sim with one bucket of equal objects.

    Args:
        root: an empty folder.
        objects: how many.
    """

    def __init__(self, root: Path, objects: int) -> None:
        folder = root / "bucket" / "train"
        folder.mkdir(parents=True)
        for number in range(objects):
            (folder / f"{number:06}.bin").write_bytes(sample(number))
        started = subprocess.run(
            ["s3sim", "start", "--root", str(root)], check=True, capture_output=True, text=True
        ).stdout
        self.endpoint = next(word for word in started.split() if word.startswith("http://")).rstrip("/")
        self.objects = objects
        self.data_bytes = objects * SAMPLE_BYTES

    @property
    def port(self) -> int:
        """On 127.0.0.1."""
        return int(self.endpoint.rsplit(":", 1)[1])

    def sent_since(self) -> float:
        """Objects sent since the last call, as a multiple of the dataset."""
        request = urllib.request.Request(f"{self.endpoint}/__stats/reset", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return float(json.load(answer)["object_gets"]) / self.objects

    def set(self, query: str) -> None:
        """Changes latency or faults."""
        request = urllib.request.Request(f"{self.endpoint}/__config?{query}", method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def stop(self) -> None:
        """Ends it."""
        subprocess.run(["s3sim", "stop", "--port", str(self.port)], check=True, capture_output=True)


class Reader(JsonProcess):
    """One trainer; see `peer_reader`."""

    def __init__(self, engine: PeerEngine, job: str, consumer: str, endpoint: str) -> None:
        program = str(Path(__file__).with_name("peer_reader.py"))
        super().__init__(
            [sys.executable, program, str(engine.socket), URL, job, consumer],
            {"STORAGE_OPTIONS": json.dumps(storage_options(endpoint))},
        )
        self.dataset = self.answer()

    def begin(self, seed: int, rank: int = 0, ranks: int = 1, pause: float = 0.0) -> None:
        """Starts an epoch; the next answer says what it was like."""
        self.tell({"seed": seed, "share": [rank, ranks], "pause": pause})


class PeerEngine:
    """A `streamer serve` among peers.

    Args:
        root: its folder.
        address: host:port of its peer server.
        members: all addresses.
        limit_bytes: of its cache.
        endpoint: of the store.
        tls_folder: with its certificate; None: plain HTTP.
        prefix: runs the command elsewhere, for instance in a network namespace.
    """

    def __init__(
        self,
        root: Path,
        address: str,
        members: str,
        limit_bytes: int,
        endpoint: str,
        prefix: Sequence[str] = (),
        *,
        tls_folder: Path | None = None,
    ) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.address, self.prefix = root, address, list(prefix)
        self.socket = root / "e.sock"
        (root / "token").write_text("secret of the fleet")
        (root / "token").chmod(0o600)
        self.config = root / "streamer.toml"
        self.config.write_text(
            f"[cache]\ndirectory = '{root}/cache'\nlimit_bytes = {limit_bytes}\n"
            f"[engine]\nsocket_path = '{self.socket}'\nsettle_seconds = 0.1\nlookahead_bytes = {2 * MiB}\n"
            f"[service]\nhttp = ''\ndrain_seconds = 2\n"
            f"[peers]\nmembers = '{members}'\nlisten = '{address}'\ntoken_file = '{root}/token'\n"
            + (f"tls_folder = '{tls_folder}'\n" if tls_folder else "")
            # Named, because a service without [[datasets]] reads nothing of its own machine.
            + f"[[datasets]]\nurl = '{URL}'\n[datasets.storage_options]\n"
            + "".join(f"{name} = '{value}'\n" for name, value in storage_options(endpoint).items())
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Until it listens."""
        with (self.root / "log").open("ab") as log:
            command = [*self.prefix, sys.executable, "-m", "streamer", "serve", "--config", str(self.config)]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"listening"), (self.root / "log").read_text()
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal to it and to its peer server, as if the machine had stopped."""
        assert self.process is not None
        engine = psutil.Process(self.process.pid)
        for process in (engine, *engine.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process.wait(30)
            self.process = None

    def statistics(self) -> dict[str, Any]:
        """As `streamer stat --json` has them."""
        command = [sys.executable, "-m", "streamer", "stat", "--json", "--socket", str(self.socket)]
        return dict(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))

    def cached_bytes(self) -> int:
        """Of its folder, with deleted files that its processes still have open."""
        folder = self.root / "cache"
        there = 0
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # evicted since it was listed
                there += path.stat().st_blocks * 512 if path.is_file() else 0
        return there + _deleted_bytes(str(folder))


def _deleted_bytes(folder: str) -> int:
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended since it was listed
            total += sum(_deleted(link, folder) for link in process.joinpath("fd").iterdir())
    return total


def _deleted(link: Path, folder: str) -> int:
    with contextlib.suppress(OSError):  # it was closed since it was listed
        target = os.readlink(link)
        if target.startswith(folder) and target.endswith(" (deleted)"):
            return link.stat().st_blocks * 512
    return 0


class Fleet:
    """Engines, their store and their trainers.

    Args:
        root: an empty folder.
        objects: of the dataset, 64 KiB each; a chunk each.
        whole: what all caches together hold, as a multiple of the dataset.
        count: of engines.
        members: None: the list of their addresses.
        tls_folder: with the certificate of all; None: plain HTTP.
    """

    def __init__(
        self,
        root: Path,
        objects: int,
        whole: float,
        *,
        count: int = 4,
        namespaces: Namespaces | None = None,
        members: str | None = None,
        tls_folder: Path | None = None,
    ) -> None:
        self.store = Store(root / "store", objects)
        self.endpoint = self.store.endpoint
        self.objects = objects
        self.sample_bytes = SAMPLE_BYTES
        addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        if namespaces is not None:
            addresses = [f"{address}:7070" for address in namespaces.addresses]
            self.endpoint = namespaces.forward(self.store.port)
        self.limit_bytes = int(whole / count * objects * charge(file_bytes(SAMPLE_BYTES, 1))) + FIXED_BYTES
        self.engines = [
            PeerEngine(
                root / f"engine{number}",
                address,
                members or ",".join(addresses),
                self.limit_bytes,
                self.endpoint,
                namespaces.prefix(number) if namespaces is not None else (),
                tls_folder=tls_folder,
            )
            for number, address in enumerate(addresses)
        ]
        self.readers: list[Reader] = []

    def start(self) -> None:
        """All engines, until each knows the others."""
        for engine in self.engines:
            engine.start()
        self.wait_for(lambda: all(one.statistics()["peer_members"] == len(self.engines) - 1 for one in self.engines))

    def read(self, *jobs: str) -> None:
        """A trainer on each engine, of these jobs; then the store's counters begin anew."""
        self.readers = [
            Reader(engine, job, f"rank {number}", self.endpoint)
            for number, (engine, job) in enumerate(zip(self.engines, jobs, strict=True))
        ]
        self.store.sent_since()

    def epoch(self, seeds: Sequence[int], ranks: int = 1) -> tuple[float, list[dict[str, Any]]]:
        """One epoch of all trainers: what the store sent, in datasets, and what each trainer saw."""
        for number, (reader, seed) in enumerate(zip(self.readers, seeds, strict=True)):
            reader.begin(seed, number % ranks, ranks)
        answers = [reader.answer() for reader in self.readers]
        return self.store.sent_since(), answers

    def total(self, name: str) -> float:
        """The sum of a counter over all engines."""
        return sum(float(engine.statistics()[name]) for engine in self.engines if engine.process is not None)

    def kept_share(self) -> float:
        """What the caches together can keep of the dataset: their limits without the staging areas."""
        size = charge(file_bytes(SAMPLE_BYTES, 1)) * self.objects
        return (self.total("limit_bytes") - self.total("staging_bytes")) / size

    def late_share(self) -> float:
        """Chunks that were read from the store because a peer was late, since the start, of those of the dataset."""
        return self.total("peer_hedge_losses") / self.objects

    @staticmethod
    def wait_for(reached: Callable[[], bool], seconds: float = 60.0) -> None:
        """Asks ten times a second until the condition holds."""
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, "it does not happen"
            time.sleep(0.1)

    def close(self) -> None:
        """Ends everything."""
        for reader in self.readers:
            reader.close(kill=True)
        for engine in self.engines:
            if engine.process is not None:
                engine.kill(signal.SIGKILL)
        self.store.stop()


@contextlib.contextmanager
def running(fleet: Fleet) -> Iterator[Fleet]:
    """A fleet that is closed at the end of the block."""
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()
