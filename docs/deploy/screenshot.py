"""Draws docs/deploy/top.svg: `streamer top` beside a service at work. Every figure is of that run.

    python docs/deploy/screenshot.py [OUT.svg]

Starts a service over local files and a job of two ranks, stops the ranks for the blink of an eye, twice, and draws what
lies between. The same picture is drawn from what /metrics says: ends with an error if they differ in anything.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from streamer.cli.status_view import StatusView
from streamer.cli.top_command import render
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.service.metrics import DEFINITIONS

SAMPLES, SAMPLE_BYTES = 800, 100_000
LINES = 40
WIDTH = 132
# What the picture shows and is no figure: who and where. Everything else has to come from /metrics.
WORDS = {
    "": ("pid", "version", "host", "cache_dir"),
    "datasets": ("dataset", "url"),
    "sessions": ("job", "consumer", "dataset", "failed", "advice"),
    "members": ("job", "consumer", "member"),
}
Looks = tuple[dict[str, object], dict[str, object]]
RANK_PROGRAM = """
import json, sys, time
from streamer import StreamingDataLoader, StreamingDataset
url, rank = sys.argv[1], int(sys.argv[2])
def resized(sample):
    time.sleep(0.004)  # what a resize would take
    return len(sample["bin"])
dataset = StreamingDataset(url, transform=resized, decode=None, rank=rank, world_size=2)
with StreamingDataLoader(dataset, batch_size=8, num_workers=1, reports=1.0) as loader:
    for epoch in range(100):
        for number, batch in enumerate(loader):
            time.sleep(0.015)  # what a step would compute
            print(epoch, number, flush=True)
"""


def from_metrics(text: str, words: dict[str, object]) -> dict[str, object]:
    """The statistics that `top` draws from, put together again from /metrics.

    Args:
        text: the exposition.
        words: the engine's statistics: only what is no figure is taken from them.
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
    """The entries that a series belongs to."""
    if not table:
        return [found]
    entries = found.get(table, [])
    known = [name for name in labels if name in WORDS.get(table, ())]
    return [row for row in entries if all(row[name] == labels[name] for name in known)]


def plain(statistics: dict[str, object]) -> dict[str, object]:
    """Whole numbers as integers, wherever they come from: /metrics has 5.0 where the engine says 5."""
    return json.loads(
        json.dumps(statistics), parse_float=lambda text: int(float(text)) if float(text) % 1 == 0 else float(text)
    )


def drawn(picture: StatusView) -> str:
    """As text."""
    console = Console(file=io.StringIO(), width=WIDTH)
    console.print(render(picture, WIDTH, LINES))
    return console.file.getvalue()


class Service:
    """A service over local files that keeps half of them.

    Args:
        folder: for everything.
        port: of its /metrics.
        job: name of the job of its ranks.
    """

    def __init__(self, folder: Path, port: int, job: str = "train") -> None:
        self.folder = folder
        self.job = job
        self.http = f"127.0.0.1:{port}"
        self.url = f"{folder}/train/"

    @contextmanager
    def running(self) -> Iterator[None]:
        """From listening to its end."""
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
        """What a scrape gets."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=5) as answer:
            return answer.read().decode()

    @contextmanager
    def rank(self, number: int) -> Iterator[subprocess.Popen[str]]:
        """A training process with a worker, in a group of its own."""
        env = {
            **os.environ,
            "STREAMER_ENGINE": f"unix:{self.folder}/s",
            "STREAMER_CACHE_DIR": f"{self.folder}/cache",
            "STREAMER_JOB": self.job,
        }
        command = [sys.executable, "-c", RANK_PROGRAM, self.url, str(number)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True, start_new_session=True)
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
            process.stdout.close()

    def look(self, client: EngineClient) -> tuple[dict[str, object], dict[str, object]]:
        """Statistics, and the same out of /metrics at nearly the same moment."""
        now = client.statistics()
        return plain(now), plain(from_metrics(self.metrics(), now))


def wait_for(ranks: list[subprocess.Popen[str]], epoch: int, batch: int) -> None:
    """Until each has made that batch."""
    for rank in ranks:
        for line in rank.stdout:
            if tuple(map(int, line.split())) >= (epoch, batch):
                break
        else:
            raise SystemExit(f"a rank ended with {rank.wait()}")


def agreed(service: Service, client: EngineClient, before: Looks | None) -> Looks:
    """Looks until the engine's statistics and /metrics draw the same picture: clocks run on between the two."""
    for _ in range(200):
        now = service.look(client)
        told, scraped = (drawn(StatusView(*look)) for look in zip(now, before or (None, None), strict=True))
        if told == scraped:
            return now
    raise SystemExit(f"top shows\n{told}\nbut /metrics says\n{scraped}")


def picture_of(service: Service) -> StatusView:
    """About a second of a job at work, every figure as in /metrics."""
    settings = ClientSettings(cache_dir=service.folder, runtime_dir=service.folder, engine=f"unix:{service.folder}/s")
    with ExitStack() as stack:
        stack.enter_context(service.running())
        ranks = [stack.enter_context(service.rank(number)) for number in range(2)]
        client = stack.enter_context(EngineClient(settings))
        wait_for(ranks, 1, 20)
        early = stopped(ranks, lambda: agreed(service, client, None))
        time.sleep(1.0)
        late = stopped(ranks, lambda: agreed(service, client, early))
        return StatusView(late[0], early[0])


def stopped(ranks: list[subprocess.Popen[str]], look: Callable[[], Looks]) -> Looks:
    """A look while nothing moves."""
    for rank in ranks:
        os.killpg(rank.pid, signal.SIGSTOP)
    found = look()
    for rank in ranks:
        os.killpg(rank.pid, signal.SIGCONT)
    return found


def main() -> None:
    """Draws into the file named, or beside this one."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("top.svg")
    with tempfile.TemporaryDirectory(prefix="top-") as name:
        picture = picture_of(Service(Path(name), 9465))
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(render(picture, WIDTH, LINES))
    console.save_svg(str(out), title="streamer top")


if __name__ == "__main__":
    main()
