"""The S3 simulator that the benchmarks measure against: latency, bandwidth, faults, TLS and exact counters.

The server is `server.py` in this folder, or another one with the same HTTP and a command `s3sim start|stop|status`,
whose path comes from --s3sim or $S3SIM.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
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
    """A running simulator.

    Attributes:
        endpoint: its address.
        processes: that serve, for what they take of the CPU.
        authority: the certificate that its clients must trust; "": it speaks no TLS.
    """

    endpoint: str
    processes: tuple[int, ...] = ()
    authority: str = ""

    @property
    def options(self) -> dict[str, object]:
        """storage_options that reach it."""
        trust = {"client_kwargs": {"verify": self.authority}} if self.authority else {}
        return {"key": "key", "secret": "secret", "endpoint_url": self.endpoint, **trust}

    def statistics(self, *, reset: bool = False) -> dict[str, object]:
        """Exact counters of the server."""
        return dict(json.loads(self._asked("/__stats" + ("/reset" if reset else ""), "POST" if reset else "GET")))

    def set(self, **options: object) -> None:
        """Changes latency, bandwidth or faults while it runs."""
        self._asked(f"/__config?{urllib.parse.urlencode(options)}", "POST")

    def index(self, url: str, manifest: Path, cache: Path, *more: str) -> None:
        """Builds the manifest of a prefix, unless it is there."""
        if manifest.exists():
            return
        options = ["--storage-options", json.dumps(self.options), "--cache-dir", str(cache)]
        command = [sys.executable, "-m", "streamer", "index", url, "--out", str(manifest), *options, *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def _asked(self, path: str, method: str) -> bytes:
        context = ssl.create_default_context(cafile=self.authority) if self.authority else None
        request = urllib.request.Request(self.endpoint + path, method=method)
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return bytes(answer.read())


@contextlib.contextmanager
def simulator(
    root: Path, *options: str, command: str | None = None, tls: bool = False, workers: int = 1
) -> Iterator[Simulator]:
    """Serves the folders of `root` as buckets while the context lasts."""
    path = command or os.environ.get("S3SIM")
    if path and not tls:
        yield from _other(path, root, options)
        return
    words = ["--root", str(root), "--workers", str(workers), *["--tls"] * tls, *options]
    server = [sys.executable, str(Path(__file__).with_name("server.py")), *words]
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        endpoint, *rest = process.stdout.readline().split()
        authority = rest.pop(0) if tls else ""
        try:
            yield Simulator(endpoint, tuple(map(int, rest)), authority)
        finally:
            process.stdin.close()


def _other(path: str, root: Path, options: tuple[str, ...]) -> Iterator[Simulator]:
    """One with a command of its own."""
    started = subprocess.run([path, "start", "--root", str(root), *options], check=True, capture_output=True, text=True)
    endpoint = next(word for word in started.stdout.split() if word.startswith("http://")).rstrip("/")
    told = subprocess.run([path, "status"], check=True, capture_output=True, text=True).stdout
    own = next(line.split() for line in told.splitlines() if line.startswith(f"{endpoint} "))
    master = int(own[own.index("pid") + 1])
    try:
        yield Simulator(endpoint, (master, *(child.pid for child in psutil.Process(master).children())))
    finally:
        subprocess.run([path, "stop", "--port", endpoint.rsplit(":", 1)[1]], check=True, capture_output=True)
