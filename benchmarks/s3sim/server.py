"""An S3 of this machine for benchmarks: reads and listings of folders, with latency, limits and faults.

    python benchmarks/s3sim/server.py --root DIR [--port N] [--workers N] [--tls] [--ttfb-ms 30 ...]

Prints its endpoint, and with --tls the authority that its clients must trust; serves until its standard input ends. It
listens on 127.0.0.1, takes any credentials, and checks no signature. Subfolders of the root are buckets. Workers are
processes that share one socket, their counters and their settings. `GET /__stats` returns the counters, `POST
/__stats/reset` returns and clears them, `POST /__config?p_503=0.1` changes settings while it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import mmap
import os
import random
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import uvloop

# Name, and what it is without an option. Milliseconds, MB/s (10^6), probabilities, seconds.
SETTINGS = {
    "ttfb_ms": 0.0,
    "ttfb_sigma": 0.0,
    "conn_mbps": 0.0,
    "total_mbps": 0.0,
    "p_503": 0.0,
    "p_reset": 0.0,
    "p_truncate": 0.0,
    "p_stall": 0.0,
    "p_stall_body": 0.0,
    "p_slow": 0.0,
    "stall_s": 30.0,
    "slow_factor": 20.0,
}
FAULTS = ("503", "reset", "truncate", "stall", "stall_body", "slow")
COUNTERS = ("connections", "requests", "object_gets", "lists", "body_bytes_sent", *(f"fault_{name}" for name in FAULTS))
# A connection's rate is kept to in steps of this time: a body that is shorter than one is not slowed.
STEP_SECONDS = 0.006
_LIST_KEYS = 1000
_RESET_AT_ONCE = struct.pack("ii", 1, 0)


class Shared:
    """What all workers see: settings, counters, and when the common link is free again. Made before they are forked."""

    def __init__(self, workers: int) -> None:
        size = 8 * (len(SETTINGS) + 1 + workers * len(COUNTERS))
        memory = mmap.mmap(-1, size)
        self.settings = np.frombuffer(memory, np.float64, len(SETTINGS) + 1)
        self.counters = np.frombuffer(memory, np.int64, workers * len(COUNTERS), 8 * (len(SETTINGS) + 1))
        self.counters = self.counters.reshape(workers, len(COUNTERS))

    def get(self, name: str) -> float:
        """A setting now."""
        return float(self.settings[_SETTING[name]])

    def set(self, name: str, value: float) -> None:
        """Changes a setting for all workers."""
        self.settings[_SETTING[name]] = value

    def admitted(self, length: int) -> float:
        """Seconds until the common link has carried what was admitted before, and this."""
        rate = self.get("total_mbps") * 1e6
        if not rate:
            return 0.0
        now = time.monotonic()
        self.settings[-1] = max(now, self.settings[-1]) + length / rate
        return float(self.settings[-1]) - now

    def statistics(self, *, reset: bool) -> dict[str, int | dict[str, int]]:
        """The sums over all workers."""
        found = dict(zip(COUNTERS, self.counters.sum(axis=0).tolist(), strict=True))
        if reset:
            self.counters[:] = 0
        injected = {name: found[f"fault_{name}"] for name in FAULTS}
        return {**found, "bytes_sent": found["body_bytes_sent"], "errors_injected": injected}


_SETTING = {name: number for number, name in enumerate(SETTINGS)}
_COUNTER = {name: number for number, name in enumerate(COUNTERS)}


@dataclass(frozen=True)
class Object:
    """A file that is served."""

    content: memoryview
    etag: str

    @classmethod
    def open(cls, path: str) -> Object:
        """Maps a file.

        Raises:
            OSError: there is none.
        """
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if found.st_size else b""
        return cls(memoryview(content), f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}-1"')


class Worker:
    """One process: its objects, its counters, its random numbers."""

    def __init__(self, root: Path, shared: Shared, number: int, fault_prefix: str) -> None:
        self.root, self.shared, self.fault_prefix = root, shared, fault_prefix
        self.random = random.Random(os.urandom(8))
        self._row = shared.counters[number]
        self._objects: dict[str, tuple[int, Object]] = {}
        self._keys: dict[str, list[str]] = {}

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter."""
        self._row[_COUNTER[name]] += amount

    def object(self, path: str) -> Object:
        """A file; another one after it was replaced.

        Raises:
            OSError: there is none.
        """
        full = f"{self.root}{path}"
        changed = os.stat(full).st_mtime_ns
        known = self._objects.get(path)
        if known is None or known[0] != changed:
            known = self._objects[path] = changed, Object.open(full)
        return known[1]

    def keys(self, bucket: str, *, again: bool) -> list[str]:
        """All keys of a bucket, in the order of their bytes; read `again` where a listing begins."""
        base = self.root / bucket
        if again or bucket not in self._keys:
            files = (str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())
            self._keys[bucket] = sorted(files, key=lambda key: key.encode())
        return self._keys[bucket]

    def delay(self) -> float:
        """Seconds to the first byte of an answer."""
        median = self.shared.get("ttfb_ms") / 1e3
        sigma = self.shared.get("ttfb_sigma")
        return median * math.exp(self.random.gauss(0.0, sigma)) if sigma else median

    def fault(self, path: str) -> str:
        """The fault that strikes a read; "": none."""
        if not path.startswith(self.fault_prefix):
            return ""
        draw = self.random.random()
        for name in FAULTS:
            draw -= self.shared.get(f"p_{name}")
            if draw < 0:
                self.count(f"fault_{name}")
                return name
        return ""


class Connection(asyncio.Protocol):
    """One connection: one request after the other."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._busy = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self._transport = cast("asyncio.Transport", transport)
        self._worker.count("connections")

    def data_received(self, data: bytes) -> None:
        """Answers when the head of a request is whole. Reads have no bodies."""
        self._received += data
        self._next()

    def _next(self) -> None:
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if self._busy or not end:
            return
        self._received, self._busy = rest, True
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._worker.count("requests")
        self._answer(method, target, headers)

    def _answer(self, method: str, target: str, headers: dict[str, str]) -> None:
        url = urlsplit(target)
        path, query = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
        if path.startswith("/__"):
            self._send("200 OK", _control(self._worker.shared, path, query), kind="application/json")
        elif method not in ("GET", "HEAD"):
            self._refuse("501 Not Implemented", "NotImplemented")
        elif path.count("/") == 1 or path.endswith("/"):
            self._worker.count("lists")
            self._later(self._worker.delay(), lambda: self._list(path.strip("/"), query))
        else:
            self._get(method, path, headers)

    # ------------------------------------------------------------ objects

    def _get(self, method: str, path: str, headers: dict[str, str]) -> None:
        worker = self._worker
        try:
            found = worker.object(path)
        except OSError:
            self._later(worker.delay(), lambda: self._refuse("404 Not Found", "NoSuchKey"))
            return
        if headers.get("if-match", found.etag) not in (found.etag, "*"):
            self._refuse("412 Precondition Failed", "PreconditionFailed")
            return
        start, stop, status = _range(headers.get("range", ""), len(found.content))
        lines = [f"ETag: {found.etag}", "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT", "Accept-Ranges: bytes"]
        if status.startswith("206"):
            lines.append(f"Content-Range: bytes {start}-{stop - 1}/{len(found.content)}")
        if method == "HEAD":
            self._later(worker.delay(), lambda: self._head(status, stop - start, lines, ended=True))
            return
        worker.count("object_gets")
        self._read(status, found.content[start:stop], lines, worker.fault(path))

    def _read(self, status: str, body: memoryview, lines: list[str], fault: str) -> None:
        """Sends a body as the settings and a fault want it."""
        shared, seconds = self._worker.shared, self._worker.delay()
        rate = shared.get("conn_mbps") * 1e6
        if fault == "503":
            self._later(seconds, lambda: self._refuse("503 Slow Down", "SlowDown"))
            return
        if fault == "slow":
            seconds, rate = max(0.01, seconds) * shared.get("slow_factor"), rate / shared.get("slow_factor")
        if fault == "stall":
            seconds += shared.get("stall_s")
        cut = self._worker.random.randrange(len(body)) if fault in ("reset", "truncate", "stall_body") and body else -1

        def begin() -> None:
            self._head(status, len(body), lines, ended=False)
            self._carry(body, rate, cut, fault)

        self._later(max(seconds, shared.admitted(len(body))), begin)

    def _carry(self, body: memoryview, rate: float, cut: int, fault: str) -> None:
        """Sends what is left of a body, in steps where the rate is limited; `cut`: where the fault strikes."""
        if self._transport.is_closing():
            return
        if cut == 0:
            self._strike(body, rate, fault)
            return
        length = len(body) if not rate else max(1, int(rate * STEP_SECONDS))
        piece = body[: length if cut < 0 else min(length, cut)]
        self._transport.write(piece)
        self._worker.count("body_bytes_sent", len(piece))
        rest, cut = body[len(piece) :], cut - len(piece) if cut > 0 else cut
        if not len(rest):
            self._done()
        elif rate:
            self._later(len(piece) / rate, lambda: self._carry(rest, rate, cut, fault))
        else:
            self._carry(rest, rate, cut, fault)

    def _strike(self, body: memoryview, rate: float, fault: str) -> None:
        if fault == "stall_body":
            self._later(self._worker.shared.get("stall_s"), lambda: self._carry(body, rate, -1, ""))
        elif fault == "truncate":
            self._transport.close()
        else:
            plain = self._transport.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
            self._transport.abort()

    # ------------------------------------------------------------ listings

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        """ListObjectsV2 with prefix, delimiter, start-after and tokens, which are keys."""

        def asked(name: str) -> str:
            return query.get(name, [""])[0]

        if not (self._worker.root / bucket).is_dir():
            self._refuse("404 Not Found", "NoSuchBucket")
            return
        prefix, delimiter, after = (
            asked("prefix"),
            asked("delimiter"),
            asked("continuation-token") or asked("start-after"),
        )
        most = min(int(asked("max-keys") or _LIST_KEYS), _LIST_KEYS)
        entries, common = list[str](), dict[str, None]()
        last, truncated = after, False
        for key in self._worker.keys(bucket, again=not asked("continuation-token")):
            rest = key[len(prefix) :]
            folder = prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else ""
            if not key.startswith(prefix) or (folder or key).encode() <= after.encode() or folder in common:
                continue
            if len(entries) + len(common) == most:
                truncated = True
                break
            last = folder or key
            if folder:
                common[folder] = None
            else:
                entries.append(self._entry(bucket, key))
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if truncated else ""
        folders = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in common)
        self._send(
            "200 OK",
            f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(entries) + len(common)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(truncated).lower()}</IsTruncated>{token}"
            f"{''.join(entries)}{folders}</ListBucketResult>",
        )

    def _entry(self, bucket: str, key: str) -> str:
        found = os.stat(self._worker.root / bucket / key)
        etag = f"&quot;{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}-1&quot;"
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{etag}</ETag>"
            f"<Size>{found.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )

    # ------------------------------------------------------------ answers

    def _refuse(self, status: str, code: str) -> None:
        self._send(status, f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>')

    def _send(self, status: str, text: str, kind: str = "application/xml") -> None:
        body = text.encode()
        self._head(status, len(body), [f"Content-Type: {kind}"], ended=False)
        self._transport.write(body)
        self._done()

    def _head(self, status: str, length: int, lines: list[str], *, ended: bool) -> None:
        head = [f"HTTP/1.1 {status}", "Server: s3sim", f"Content-Length: {length}", *lines, "", ""]
        self._transport.write("\r\n".join(head).encode())
        if ended:
            self._done()

    def _done(self) -> None:
        """The next request of this connection may be there already."""
        self._busy = False
        if self._received:
            self._loop.call_soon(self._next)

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        if seconds <= 0.0:
            work()
        else:
            self._loop.call_later(seconds, lambda: None if self._transport.is_closing() else work())


def _control(shared: Shared, path: str, query: dict[str, list[str]]) -> str:
    """Statistics and settings."""
    if path.startswith("/__config"):
        for name, (value, *_) in query.items():
            shared.set(name, float(value))
        return json.dumps({name: shared.get(name) for name in SETTINGS})
    return json.dumps(shared.statistics(reset=path.endswith("/reset")))


def _range(text: str, size: int) -> tuple[int, int, str]:
    """Start and stop of a range, and the status."""
    if not text.startswith("bytes="):
        return 0, size, "200 OK"
    first, _, last = text.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    return start, min(size, int(last) + 1) if first and last else size, "206 Partial Content"


# ---------------------------------------------------------------- processes


def _certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A certificate for 127.0.0.1 of an authority made for it."""

    def openssl(*words: str) -> None:
        subprocess.run(
            ["openssl", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
        )

    (folder / "extra.cnf").write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\n"
    )
    new_key = ("-newkey", "rsa:2048", "-nodes")
    authority = ("-subj", "/CN=s3sim authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", "-x509", *new_key, "-keyout", "ca-key.pem", "-out", "ca.pem", "-days", "30", *authority)
    openssl("req", *new_key, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=localhost")
    signed = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "30", "-extfile", "extra.cnf")
    openssl("x509", "-req", "-in", "request.pem", *signed, "-out", "cert.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "ca.pem"


async def _work(listener: socket.socket, context: ssl.SSLContext | None, worker: Worker, parent: int) -> None:
    """Serves until the first process is gone."""
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Connection(worker), sock=listener, ssl=context, backlog=1024)
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(1)


def main() -> None:
    """Serves until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--fault-prefix", default="/")
    for name, default in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default)
    arguments = parser.parse_args()
    shared = Shared(arguments.workers)
    for name in SETTINGS:
        shared.set(name, getattr(arguments, name))
    with tempfile.TemporaryDirectory(prefix="s3sim-") as folder:
        context, authority = _certificate(Path(folder)) if arguments.tls else (None, None)
        listener = socket.create_server(("127.0.0.1", arguments.port), backlog=1024)
        parent, pids = os.getpid(), []
        for number in range(arguments.workers):
            if not (pid := os.fork()):
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                worker = Worker(arguments.root.absolute(), shared, number, arguments.fault_prefix)
                uvloop.run(_work(listener, context, worker, parent))
                os._exit(0)
            pids.append(pid)
        scheme = "https" if arguments.tls else "http"
        print(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", authority or "", *pids, flush=True)
        sys.stdin.read()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
