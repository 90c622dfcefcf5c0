"""The emulators, each a process of its own on a free port, ended by its pid; and the buckets in them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

START_SECONDS = 60
AZURITE = "3.35.0"
# Azurite's own well-known account; no secret.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Output:
    """Reads what a process says, so that its pipe never fills, and keeps the end for a message."""

    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        self._process, self._ready = process, re.compile(ready)
        self._last: deque[str] = deque(maxlen=20)
        self._said = threading.Event()
        self._match: re.Match[str] | None = None
        self._thread = threading.Thread(target=self._read, name="emulator-output", daemon=True)
        self._thread.start()

    def wait_ready(self) -> re.Match[str]:
        """The line that says it listens."""
        self._said.wait(START_SECONDS)
        if self._match is None:
            pytest.fail(f"{self._process.args} is not ready after {START_SECONDS} s or ended: {''.join(self._last)}")
        return self._match

    def join(self) -> None:
        """Ends with the process."""
        self._thread.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last.append(line)
            if self._match is None and (found := self._ready.search(line)):
                self._match = found
                self._said.set()
        self._said.set()


@contextmanager
def running(command: Sequence[str | Path], ready: str) -> Iterator[re.Match[str]]:
    """A process while it is needed; yields the match of `ready` in what it prints."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = Output(process, ready)
    try:
        yield output.wait_ready()
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.join()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def moto(*options: str | Path) -> Iterator[str]:
    """S3 by moto; the url of its endpoint."""
    command = [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0", *options]
    with running(command, r"Running on (https?)://127\.0\.0\.1:(\d+)") as found:
        yield f"{found[1]}://127.0.0.1:{found[2]}"


@contextmanager
def azurite() -> Iterator[str]:
    """Azure's blobs by Azurite; its connection string."""
    command = ["node", _azurite_script(), "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    # The SDKs speak newer versions of the protocol than the emulator knows by name.
    command += ["--skipApiVersionCheck", "--blobHost", "127.0.0.1", "--blobPort", str(free_port())]
    with running(command, r"successfully listens on (http://127\.0\.0\.1:\d+)") as found:
        parts = {"DefaultEndpointsProtocol": "http", "AccountName": AZURE_ACCOUNT, "AccountKey": AZURE_KEY}
        parts["BlobEndpoint"] = f"{found[1]}/{AZURE_ACCOUNT}"
        yield ";".join(f"{name}={value}" for name, value in parts.items())


@contextmanager
def google(bucket: str) -> Iterator[str]:
    """Google's JSON API by gcp-storage-emulator; the url of its endpoint."""
    command = [sys.executable, "-u", "-m", "gcp_storage_emulator", "start", "--in-memory"]
    port = free_port()
    command += ["--host", "127.0.0.1", "--port", str(port), "--default-bucket", bucket]
    with running(command, "All services started"):
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    """A port that was free a moment ago, for servers that do not say which one they took."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _azurite_script() -> Path:
    """Installs Azurite once per machine and version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "streamer-tests" / f"azurite-{AZURITE}"
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not script.exists():
        if shutil.which("npm") is None:
            pytest.fail("Azurite needs node and npm; install them, or leave it out with -k 'not azure'")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"azurite@{AZURITE}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=280)
    return script


def make_s3_bucket(options: Mapping[str, object], name: str) -> None:
    """A bucket in moto; `options` as s3fs takes them."""
    from botocore.session import Session

    extra = options.get("client_kwargs")
    client = Session().create_client(
        "s3",
        endpoint_url=options["endpoint_url"],
        region_name="us-east-1",
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        verify=extra["verify"] if isinstance(extra, Mapping) else None,
    )
    client.create_bucket(Bucket=name)
    client.close()


def make_azure_container(connection: str, name: str) -> None:
    """A container in Azurite."""
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient.from_connection_string(connection) as client:
        client.create_container(name)
