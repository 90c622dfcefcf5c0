"""Services with jobs at work, for tests and the documents' pictures; and made-up statistics of many ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from examples.bucket.store import BUCKET, Link, Store, request
from streamer.client.engine_client import EngineClient
from streamer.service.metrics import DEFINITIONS

SAMPLES, SAMPLE_BYTES = 800, 100_000
# What an engine says that is no figure: who and where. Everything else is in /metrics, too.
WORDS = {
    "": ("pid", "version", "host", "cache_dir"),
    "datasets": ("dataset", "url"),
    "sessions": ("job", "consumer", "dataset", "failed", "advice"),
    "members": ("job", "consumer", "member"),
}
RANK_PROGRAM = """
import json, sys, time
from streamer import StreamingDataLoader, StreamingDataset
url, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def resized(sample):
    time.sleep(0.004)  # what a resize would take
    return len(sample["bin"])
dataset = StreamingDataset(url, transform=resized, decode=None, rank=rank, world_size=world_size)
with StreamingDataLoader(dataset, batch_size=8, num_workers=1, report_every=1.0) as loader:
    for epoch in range(100):
        for number, batch in enumerate(loader):
            time.sleep(0.015)  # what a step would compute
            print(epoch, number, flush=True)
"""


class Service:
    """A real `streamer serve` over local files, with a cache for half of them, and ranks that train nothing.

    A rank sleeps where a training process would resize an image and compute a step.

    Args:
        folder: Folder for data, cache, socket and configuration.
        port: Port of its /metrics.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.http = f"127.0.0.1:{port}"
        self.url = f"{folder}/train/"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the service from its first line of output until the end of the block."""
        command = [sys.executable, "-m", "streamer", "serve", "--config", str(self._configure())]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            process.stdout.readline()
            yield
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()

    def _configure(self) -> Path:
        random = np.random.default_rng(5)
        for number in range(SAMPLES):
            path = self.folder / "train" / f"{number % 4}" / f"{number:04}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(random.bytes(SAMPLE_BYTES))
        config = self.folder / "streamer.toml"
        config.write_text(
            f"[cache]\ndirectory = '{self.folder}/cache'\nlimit_bytes = '60MB'\n"
            f"[engine]\nsocket_path = '{self.folder}/s'\n[service]\nhttp = '{self.http}'\n"
            f"[[datasets]]\nurl = '{self.url}'\n"
        )
        return config

    def metrics(self) -> str:
        """Returns what a scrape of /metrics gets."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=5) as answer:
            return answer.read().decode()

    @contextmanager
    def rank(self, number: int, job: str = "train", ranks: int = 2) -> Iterator[subprocess.Popen[str]]:
        """Runs a training process of a job with `ranks` ranks, and its worker, in a process group of their own."""
        env = {
            **os.environ,
            "STREAMER_ENGINE": f"unix:{self.folder}/s",
            "STREAMER_CACHE_DIR": f"{self.folder}/cache",
            "STREAMER_JOB": job,
        }
        command = [sys.executable, "-c", RANK_PROGRAM, self.url, str(number), str(ranks)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True, start_new_session=True)
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
            process.stdout.close()

    def look(self, client: EngineClient) -> tuple[dict[str, object], dict[str, object]]:
        """Returns the statistics, and the same computed from /metrics at nearly the same moment."""
        now = client.statistics()
        return plain(now), plain(from_metrics(self.metrics(), now))


def wait_for(ranks: list[subprocess.Popen[str]], epoch: int, batch: int) -> None:
    """Waits until each rank has made that batch."""
    for rank in ranks:
        for line in rank.stdout:
            if tuple(map(int, line.split())) >= (epoch, batch):
                break
        else:
            raise SystemExit(f"a rank ended with {rank.wait()}")


class SlowService(Service):
    """A service over an S3 server on this machine that sends 8 MB/s, less than its ranks can read.

    The service may be restarted.
    """

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port)
        self.url = f"s3://{BUCKET}/train/"
        self._parts = ExitStack()

    @contextmanager
    def at_work(self, **jobs: int) -> Iterator[None]:
        """Runs jobs, given as their numbers of ranks, until the end of the block."""
        link = Link(first_byte_seconds=0.02, bytes_per_second=8_000_000)
        with Store(link) as store, ExitStack() as stack:
            self._fill(store.endpoint)
            with self._parts:
                self._parts.enter_context(self.running())
                ranks = [(number, job, count) for job, count in jobs.items() for number in range(count)]
                wait_for([stack.enter_context(self.rank(*rank)) for rank in ranks], 0, 5)
                yield

    def restart(self) -> None:
        """Ends the service as a service manager does, and starts it again."""
        self._parts.close()
        self._parts.enter_context(self.running())

    def _fill(self, endpoint: str) -> None:
        request(endpoint, "PUT", f"/{BUCKET}")
        random = np.random.default_rng(5)
        for number in range(400):
            request(endpoint, "PUT", f"/{BUCKET}/train/{number % 4}/{number:04}.bin", random.bytes(SAMPLE_BYTES))
        options = f"{{ key = 'demo', secret = 'demo', client_kwargs = {{ endpoint_url = '{endpoint}' }} }}"
        (self.folder / "streamer.toml").write_text(
            f"[cache]\ndirectory = '{self.folder}/cache'\nlimit_bytes = '25MB'\n"
            f"[engine]\nsocket_path = '{self.folder}/s'\n[service]\nhttp = '{self.http}'\n"
            f"[[datasets]]\nurl = '{self.url}'\nstorage_options = {options}\n"
        )

    def _configure(self) -> Path:
        return self.folder / "streamer.toml"


def from_metrics(text: str, words: dict[str, object]) -> dict[str, object]:
    """Computes the statistics that `top` draws from the text of /metrics.

    Args:
        text: Exposition that a scrape got.
        words: Statistics of the engine, from which only values that are no figures are taken.
    """
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found: dict[str, object] = {name: words[name] for name in WORDS[""]}
    for table in ("datasets", "sessions", "members"):
        found[table] = [{name: row.get(name) for name in WORDS[table]} for row in words[table]]
    for definition in DEFINITIONS:
        for sample in (one for one in samples if one.name == definition.name):
            for row in rows_of(found, definition.table, sample.labels):
                row[definition.source or definition.labels[-1]] = (
                    sample.value if definition.source else sample.labels[definition.labels[-1]]
                )
    return found


def rows_of(found: dict[str, object], table: str, labels: dict[str, str]) -> list[dict[str, object]]:
    """Returns the entries that a series belongs to."""
    if not table:
        return [found]
    entries = found.get(table, [])
    known = [name for name in labels if name in WORDS.get(table, ())]
    return [row for row in entries if all(row[name] == labels[name] for name in known)]


def plain(statistics: dict[str, object]) -> dict[str, object]:
    """Makes integers of whole numbers, because /metrics has 5.0 where the engine says 5."""
    return json.loads(
        json.dumps(statistics), parse_float=lambda text: int(float(text)) if float(text) % 1 == 0 else float(text)
    )


def make_statistics(ranks: int = 64, datasets: int = 20, job: str = "imagenet-vit-b16") -> dict[str, object]:
    """Makes up statistics of an engine with many ranks, each with its own values, so that a misplaced one is seen."""
    sessions = [_make_session(rank, job) for rank in range(ranks)]
    tables = [
        {
            "dataset": f"{number:02x}" * 32,
            "url": f"s3://bucket/train-{number}/",
            "samples": 1_281_167 + number,
            "total_bytes": 146_640_000_000,
            "sessions": ranks,
        }
        for number in range(datasets)
    ]
    figures = {"pid": 4711, "version": "0.2.0", "uptime_seconds": 3723.5, "connections": ranks, "draining": False}
    figures |= {"host": "gpu-07", "cache_dir": "/nvme/streamer", "disk_free_bytes": 4.3e11, "disk_bytes": 1.9e12}
    figures |= {"store_bytes": 9.4e11, "store_requests": 112_000, "in_flight": 17, "window": 64, "fetches": 12}
    figures |= {"first_byte_p50_seconds": 0.031, "first_byte_p99_seconds": 0.118, "hit_bytes": 4.1e11}
    figures |= {"kept_bytes": 1.61e11, "transit_bytes": 2.3e9, "limit_bytes": 2e11, "hedges": 12, "hedge_wins": 7}
    figures |= {"retries": 3, "throttled": 1, "failures": 0, "errors": 0, "rejected_chunks": 0, "hit_bound": 0.487}
    text = "s3://bucket answers 503 to 3 of 112000 requests and permits about 600 a second"
    warning = {"at_seconds": 1795440000.0, "level": "WARNING", "logger": "streamer.fetch.pacing", "text": text}
    members = [_make_member(rank, number, job) for rank in range(ranks) for number in range(datasets)]
    rest = {"anonymous_bytes": 123456789, "members": members, "warnings": [{**warning, "count": 3}]}
    return {**figures, **rest, "sessions": sessions, "datasets": tables}


def _make_member(rank: int, number: int, job: str) -> dict[str, object]:
    needed = {"needed_bytes": 3_300_000 * (number + 1) + rank, "hit_bytes": 1_700_000 + rank}
    return {
        "job": job,
        "consumer": f"rank {rank}",
        "member": f"set {number}",
        **needed,
        "hit_bound": 0.4 + number / 100,
    }


def _make_session(rank: int, job: str) -> dict[str, object]:
    worst = rank % 21 == 1
    return {
        "job": job,
        "consumer": f"rank {rank}",
        "dataset": f"{0:064x}",
        "waiting_seconds": 1.53 + rank / 10,
        "age_seconds": 100.0,
        "loader_waiting_share": 0.413 - rank / 1000 if worst else 0.011,
        "bottleneck": "decode" if worst else "not input-bound",
        "advice": "4 more workers (num_workers=8; 5.1 of 8 cores idle) or smaller images" if worst else "",
        "report_age_seconds": 3.0,
        "failed": "",
        "epoch": 2,
        "done": 12_345 + rank,
        "epoch_needed_bytes": 3_000_000,
        "epoch_hit_bytes": 1_460_000 + rank,
    }
