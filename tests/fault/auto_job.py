"""A job with an embedded engine on each node, as processes: its ranks, started and killed, and the store they read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from streamer.cache.disk_space import FIXED_BYTES
from streamer.cache.policy.table import charge
from streamer.formats.chunkfile import file_bytes
from tests.fault.json_process import JsonProcess
from tests.fault.namespaces import Namespaces
from tests.fault.peer_engines import Store
from tests.fault.peer_reader import SAMPLE_BYTES

# Divided by 3, 4, 5 and 6 nodes.
BATCH = 120
_PORT = 29_400


class Rank(JsonProcess):
    """One rank; see `auto_rank`. Its engine stays for three seconds after it."""

    def __init__(self, task: dict[str, Any], prefix: Sequence[str], runtime: Path) -> None:
        program = str(Path(__file__).with_name("auto_rank.py"))
        variables = {"STREAMER_RUNTIME_DIR": str(runtime), "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        super().__init__([*prefix, sys.executable, program, json.dumps(task)], variables)

    def begin(self, batches: int) -> None:
        """Reads so many batches, or until the end of the epoch."""
        self.tell({"batches": batches})


class Job:
    """A dataset of equal objects, a chunk each, and the nodes that read it.

    Args:
        root: an empty folder.
        objects: of the dataset, 64 KiB each.
        share: of the dataset that one cache keeps.
        namespaces: one for each node.
        ordered: objects are read in order, without shuffle.
    """

    def __init__(
        self, root: Path, objects: int, share: float, namespaces: Namespaces, *, ordered: bool = False
    ) -> None:
        self.root, self.objects = root, objects
        self.store = Store(root / "store", objects)
        self._namespaces = namespaces
        self._endpoint = namespaces.forward(self.store.port)
        self.cache_bytes = int(share * objects * charge(file_bytes(SAMPLE_BYTES, 1))) + FIXED_BYTES
        self._incarnations = 0
        self._engines: dict[int, int] = {}
        self._answers: Sequence[dict[str, Any]] = ()
        self._missed = [0.0]
        self.ranks: dict[int, Rank] = {}
        self._index(["--no-shuffle"] * ordered)
        self.store.sent_since()

    def _index(self, options: list[str]) -> None:
        command = [sys.executable, "-m", "streamer", "index", "s3://bucket/train/", "--chunk-bytes", str(SAMPLE_BYTES)]
        told = [
            "--out",
            str(self.root / "manifest"),
            "--storage-options",
            json.dumps(self._options(self.store.endpoint)),
        ]
        places = {"STREAMER_CACHE_DIR": str(self.root / "index"), "STREAMER_RUNTIME_DIR": str(self.root / "run")}
        subprocess.run([*command, *told, *options], check=True, capture_output=True, env={**os.environ, **places})

    @staticmethod
    def _options(endpoint: str) -> dict[str, str]:
        return {"key": "key", "secret": "secret", "endpoint_url": endpoint}

    def start(
        self,
        nodes: Sequence[int],
        state: dict[str, Any] | None = None,
        *,
        pause: float = 0.0,
        lanes_by: str | None = None,
        lanes: int | None = None,
        **dataset: object,
    ) -> None:
        """Starts the job: one rank on each of these nodes, in this order; they pause so long after each batch."""
        self._incarnations += 1
        for rank, node in enumerate(nodes):
            task = {
                "rank": rank,
                "world": len(nodes),
                "master": self._namespaces.addresses[nodes[0]],
                "port": _PORT + self._incarnations,
                "url": "s3://bucket/train/",
                "manifest": str(self.root / "manifest"),
                "options": self._options(self._endpoint),
                "cache_dir": str(self.root / f"cache{node}"),
                "cache_bytes": self.cache_bytes,
                "batch": BATCH,
                "pause": pause,
                "dataset": {"order": {"lanes_by": lanes_by, "lanes": lanes}, "share_caches": "auto", **dataset},
                "state": state,
            }
            self.ranks[node] = Rank(task, self._namespaces.prefix(node), self.root / "run")
        for node, rank in self.ranks.items():
            self._engines[node] = rank.answer()["engine"]

    def read(self, batches: int = 1 << 30) -> tuple[float, list[dict[str, Any]]]:
        """So many batches of an epoch on all ranks: what the store sent, in datasets, and what the ranks say.

        But for chunks for which a peer was late or busy, now or in the read before, when their homes did not hear of
        them: on a busy machine that is no fault of the engines.
        """
        for rank in self.ranks.values():
            rank.begin(batches)
        self._answers = [rank.answer() for rank in self.ranks.values()]
        names = ("peer_hedge_losses", "peer_refused", "peer_failures")
        self._missed = [*self._missed[-2:], sum(map(self.total, names)) / self.objects]
        return self.store.sent_since() - (self._missed[-1] - self._missed[0]), self._answers

    def epoch(self) -> float:
        """A whole epoch, each sample once: what the store sent, in datasets."""
        sent, answers = self.read()
        assert sorted(number for answer in answers for number in answer["samples"]) == list(range(self.objects))
        return sent

    def total(self, name: str) -> float:
        """Of the engines of all ranks, after the last `read`; they count from their start."""
        return sum(float(answer["counts"].get(name, 0)) for answer in self._answers)

    def kept_share(self) -> float:
        """What the caches together can keep of the dataset: their limits without the staging areas."""
        size = charge(file_bytes(SAMPLE_BYTES, 1)) * self.objects
        return (self.total("limit_bytes") - self.total("staging_bytes")) / size

    def stop(self, killed: Sequence[int] = ()) -> None:
        """Ends the job, and waits until its engines have left.

        Args:
            killed: nodes that stop at once, with their engines; the other ranks are killed.
        """
        for node in killed:
            engine = psutil.Process(self._engines[node])
            for process in (engine, *engine.children(recursive=True)):
                process.send_signal(signal.SIGKILL)
        for rank in self.ranks.values():
            rank.close(kill=bool(killed))
        for pid in self._engines.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).wait(60)
        self.ranks, self._engines, self._answers, self._missed = {}, {}, (), [0.0]

    def close(self) -> None:
        """Ends everything."""
        for rank in self.ranks.values():
            rank.close(kill=True)
        for pid in self._engines.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        self.store.stop()
