"""Two jobs on four nodes whose caches act as one: a node is lost, an empty one takes its place."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from examples.bucket.images import draw_images
from examples.bucket.store import MANIFEST_URL, TARS_URL, Link, Store, storage_options, upload
from examples.fleet.nodes import Node, Usage
from examples.fleet.train import Epoch
from streamer.errors import StreamerError

# Where the ranks of each job are, on nodes from 0: job A, job B.
_FOUR = ((0, 1), (2, 3))
_THREE = ((0, 1), (2,))
_NEW = ((0, 1), (2, 4))
_LOST, _JOINED = 3, 4
_JOBS = "AB"
_PATIENCE_SECONDS = 60.0


class FleetOptions(msgspec.Struct, frozen=True):
    """The options of a run.

    Attributes:
        images: to draw.
        seed: of the images and of job A's order; job B has the next one.
        cache_share: limit of each cache as a share of the data.
        link: to the store.
    """

    images: int = 1600
    seed: int = 17
    # Four nodes hold the data one and a half times, three of them once.
    cache_share: float = 0.4
    link: Link = Link(first_byte_seconds=0.03, bytes_per_second=20_000_000)


class Row(msgspec.Struct, frozen=True):
    """One epoch of both jobs.

    Attributes:
        name: for the table.
        event: what happened to the nodes.
        nodes: that ran at its end.
        samples: that the ranks read.
        seconds: until the last rank had read its part.
        store_bytes: sent by the store, as it counts them.
        used: by all ranks.
    """

    name: str
    event: str
    nodes: int
    samples: int
    seconds: float
    store_bytes: int
    used: Usage


class FleetMeasured(msgspec.Struct, frozen=True):
    """All of it.

    Attributes:
        dataset_bytes: of the tars.
        cache_bytes: limit of each node's cache.
        rows: two epochs without peers, then six with them.
    """

    dataset_bytes: int
    cache_bytes: int
    rows: list[Row]


def run_fleet(options: FleetOptions, show: Callable[[str], None] = print) -> FleetMeasured:
    """Runs the demonstration; shows a line per epoch.

    Raises:
        StreamerError: a part of it failed; the message has the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder, Store(options.link) as server:
        tar_bytes = upload(server.endpoint, draw_images(options.images, options.seed))
        show(f"{options.images:,} images drawn and uploaded")
        _index(server, Path(folder))
        cache_bytes = int(options.cache_share * tar_bytes)
        rows = []
        for is_fleet in (False, True):
            with _cluster(Path(folder), cache_bytes, server.endpoint, is_fleet=is_fleet) as nodes:
                run = _Run(options, show, server, nodes)
                rows += run.fleet() if is_fleet else run.separate()
        return FleetMeasured(tar_bytes, cache_bytes, rows)


class _Run:
    """The epochs on one set of nodes."""

    def __init__(
        self, options: FleetOptions, show: Callable[[str], None], server: Store, nodes: Sequence[Node]
    ) -> None:
        self._options = options
        self._show = show
        self._server = server
        self._nodes = nodes
        self._epochs = 0

    def separate(self) -> list[Row]:
        """Without peers."""
        self._start(0, 1, 2, 3)
        return [self._epoch(f"{number}, no peers", _FOUR) for number in (1, 2)]

    def fleet(self) -> list[Row]:
        """With peers: four nodes, one is lost, an empty one takes its place."""
        self._start(0, 1, 2, 3)
        self._await_peers()
        rows = [self._epoch("1", _FOUR), self._epoch("2", _FOUR)]
        rows.append(self._epoch("3", _FOUR, "node 4 is lost", self._nodes[_LOST].kill))
        rows.append(self._epoch("4", _THREE))
        self._start(_JOINED)
        self._await_peers()
        rows.append(self._epoch("5", _NEW, "node 5 in its place"))
        rows.append(self._epoch("6", _NEW))
        return rows

    def _start(self, *numbers: int) -> None:
        for number in numbers:
            job = int(number >= 2)
            self._nodes[number].start()
            self._nodes[number].train(f"job {_JOBS[job]}", self._options.seed + job)
        for number in numbers:
            self._nodes[number].wait_for("ready")

    def _await_peers(self) -> None:
        """Until each node knows all others that run."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        running = [node for node in self._nodes if node.is_running]
        while any(node.peers() < len(running) - 1 for node in running):
            if time.monotonic() > deadline:
                raise StreamerError(f"the nodes have not found each other within {_PATIENCE_SECONDS:.0f} s")
            time.sleep(0.1)

    def _epoch(
        self,
        name: str,
        ranks: Sequence[Sequence[int]],
        event: str = "",
        in_the_middle: Callable[[], None] | None = None,
    ) -> Row:
        stored, used, begun = self._server.counts(), self._used(), time.monotonic()
        for job in ranks:
            for rank, number in enumerate(job):
                self._nodes[number].begin(Epoch(self._epochs, rank, len(job)))
        self._epochs += 1
        if in_the_middle is not None:
            self._nodes[_LOST].wait_for("half")
            used -= self._nodes[_LOST].usage()
            in_the_middle()
        reading = [self._nodes[number] for job in ranks for number in job if self._nodes[number].is_running]
        samples = sum(node.wait_for("samples") for node in reading)
        row = Row(
            name=name,
            event=event,
            nodes=sum(node.is_running for node in self._nodes),
            samples=samples,
            seconds=time.monotonic() - begun,
            store_bytes=self._server.counts().since(stored).read_bytes,
            used=self._used() - used,
        )
        self._show(f"epoch {name}: {row.seconds:.1f} s{', ' * bool(event)}{event}")
        return row

    def _used(self) -> Usage:
        return sum((node.usage() for node in self._nodes if node.is_running), Usage())


@contextlib.contextmanager
def _cluster(folder: Path, cache_bytes: int, endpoint: str, *, is_fleet: bool) -> Iterator[list[Node]]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    prefix, members, options = "p" if is_fleet else "a", addresses if is_fleet else (), storage_options(endpoint)
    # The fifth comes with an empty disk, to the address of the one that was lost.
    nodes = [
        Node(folder / f"{prefix}{number}", address, members, cache_bytes, options)
        for number, address in enumerate([*addresses, addresses[_LOST]], 1)
    ]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def _index(server: Store, folder: Path) -> None:
    """`streamer index`, as one does once for a dataset.

    Raises:
        StreamerError: it failed.
    """
    options = folder / "options.json"
    options.write_text(json.dumps(storage_options(server.endpoint)))
    command = [sys.executable, "-m", "streamer", "index", TARS_URL, "--out", MANIFEST_URL]
    command += ["--storage-options", f"@{options}", "--cache-dir", str(folder / "index")]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise StreamerError(f"streamer index ended with {done.returncode}: {done.stderr.strip()}")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
