"""Starts the S3 simulator that the benchmarks measure against: nginx with latency, bandwidth and exact counters.

The simulator is a command `s3sim start|stats|set|stop`; its path comes from --s3sim or $S3SIM.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

# S3 within its region: first byte 30 ms median, 90 MB/s on one connection.
S3_PROFILE = ("--ttfb-ms", "30", "--ttfb-sigma", "0.5", "--conn-mbps", "90")


@dataclass(frozen=True)
class Simulator:
    """A running simulator."""

    command: str
    endpoint: str

    @property
    def options(self) -> dict[str, object]:
        """storage_options that reach it."""
        return {"key": "key", "secret": "secret", "endpoint_url": self.endpoint}

    def statistics(self, *, reset: bool = False) -> dict[str, object]:
        """Exact counters of the server."""
        request = urllib.request.Request(
            f"{self.endpoint}/__stats" + ("/reset" if reset else ""), method="POST" if reset else "GET"
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))

    def index(self, url: str, manifest: Path, cache: Path, *more: str) -> None:
        """Builds the manifest of a prefix, unless it is there."""
        if manifest.exists():
            return
        options = ["--storage-options", json.dumps(self.options), "--cache-dir", str(cache)]
        command = [sys.executable, "-m", "streamer", "index", url, "--out", str(manifest), *options, *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def processes(self) -> list[int]:
        """Its processes, for what they take of the CPU."""
        told = subprocess.run([self.command, "status"], check=True, capture_output=True, text=True).stdout
        own = next(line.split() for line in told.splitlines() if line.startswith(f"{self.endpoint} "))
        master = int(own[own.index("pid") + 1])
        return [master, *(child.pid for child in psutil.Process(master).children())]

    def set(self, **options: object) -> None:
        """Changes latency, bandwidth or faults while it runs."""
        query = urllib.parse.urlencode(options)
        request = urllib.request.Request(f"{self.endpoint}/__config?{query}", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()


@contextlib.contextmanager
def simulator(root: Path, *options: str, command: str | None = None, tls: bool = False) -> Iterator[Simulator]:
    """Serves the folders of `root` as buckets while the context lasts."""
    path = command or os.environ.get("S3SIM", "s3sim")
    started = subprocess.run([path, "start", "--root", str(root), *options], check=True, capture_output=True, text=True)
    endpoint = next(word for word in started.stdout.split() if word.startswith("http://"))
    try:
        yield Simulator(path, endpoint.rstrip("/"))
    finally:
        subprocess.run(
            [path, "stop", "--port", endpoint.rstrip("/").rsplit(":", 1)[1]], check=True, capture_output=True
        )
