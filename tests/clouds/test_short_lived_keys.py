"""A job whose keys live for seconds, from an issuer that fails a third of the time.

`STREAMER_SOAK_SECONDS=600` reads for ten minutes with keys of 40 s; a minute, with keys of 12 s, is the default.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

from tests.clouds.issuers import Issuer, _Handler, set_up
from tests.clouds.short_lived_rank import OBJECT_BYTES, content_of

pytestmark = [pytest.mark.clouds, pytest.mark.timeout(900)]

SECONDS = float(os.environ.get("STREAMER_SOAK_SECONDS", "60"))
LIFETIME_SECONDS = 40.0 if SECONDS >= 300 else 12.0
SAMPLES = 1600
# What a renewal may cost a read, and for how long after a kill of the engine its start is what ranks wait for.
MOST_SECONDS = 2.0
START_SECONDS = 10.0
# How long the issuer is silent where it does not answer.
SILENT_SECONDS = 4.0
TAG = "STREAMER_TEST_OF_KEYS"


@dataclass
class ShortLived(Issuer):
    """Keys that end at the moment they state; and how the issuer answered.

    Attributes:
        outcomes: answers by kind.
        refused: requests for objects with keys that had ended.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(5))
    _ends: dict[str, float] = field(default_factory=dict)

    def issue(self) -> tuple[str, str, str, object]:  # type: ignore[override]
        """Issues keys as Issuer does, and remembers when they end."""
        key, secret, token, end = super().issue()
        self._ends[key] = end.timestamp()
        return key, secret, token, end

    def takes(self, headers: Mapping[str, str]) -> bool:
        """Takes keys as Issuer does, until the moment at which they end."""
        key = headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        good = super().takes(headers) and time.time() < self._ends.get(key, 0.0)
        self.refused += not good
        return good


class _Bucket(_Handler):
    """Stands for STS and a bucket that takes its keys while they last; a third of STS's answers fail.

    It compares key ids and times, and checks no signature.
    """

    issuer: ShortLived

    def _works(self) -> bool:
        fate = self.issuer.chance.choice(["503", "silent", "reset", *["good"] * 6])
        self.issuer.outcomes[fate] += 1
        if fate == "503":
            self._answer(503, "{}")
        elif fate == "silent":
            time.sleep(SILENT_SECONDS)  # a fault, not a wait
            self.close_connection = True
        elif fate == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.close_connection = True
        return fate == "good"

    def _store(self) -> None:
        parts = urlsplit(self.path)
        if not self.issuer.takes(self.headers):
            return self._answer(400, "<Error><Code>ExpiredToken</Code></Error>", "application/xml")
        if "list-type" in parts.query:
            return self._answer(200, _listing(parse_qs(parts.query)), "application/xml")
        number = int(parts.path.rpartition("/")[2].removesuffix(".bin"))
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{OBJECT_BYTES}")
        self.send_header("ETag", _etag(number))
        return self._finish(content_of(number)[first : last + 1])


def _etag(number: int) -> str:
    return f'"{hashlib.md5(content_of(number), usedforsecurity=False).hexdigest()}"'


def _listing(query: Mapping[str, list[str]]) -> str:
    """A page of 1,000 keys; the token is the next number."""
    first = int(query.get("continuation-token", ["0"])[0])
    stop = min(first + 1000, SAMPLES)
    entries = "".join(
        f"<Contents><Key>train/{number:05}.bin</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{_etag(number)}</ETag><Size>{OBJECT_BYTES}</Size></Contents>"
        for number in range(first, stop)
    )
    more = f"<NextContinuationToken>{stop}</NextContinuationToken>" if stop < SAMPLES else ""
    truncated = str(stop < SAMPLES).lower()
    return (
        f"<ListBucketResult><Name>bucket</Name><IsTruncated>{truncated}</IsTruncated>{more}{entries}</ListBucketResult>"
    )


@contextmanager
def bucket() -> Iterator[ShortLived]:
    """The store and the issuer, in threads of this process."""
    issuer = ShortLived("", LIFETIME_SECONDS)
    issuer.well.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Bucket,), {"issuer": issuer}))
    server.daemon_threads = False
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="bucket", kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _start(rank: int, folder: Path) -> subprocess.Popen[str]:
    task = {"cache": str(folder / "c"), "rank": rank, "seconds": SECONDS, "pause_seconds": 0.1}
    script = Path(__file__).with_name("short_lived_rank.py")
    with (folder / f"rank{rank}").open("w") as out, (folder / f"log{rank}").open("w") as log:
        return subprocess.Popen([sys.executable, str(script), json.dumps(task)], stdout=out, stderr=log, text=True)


def _engines(tag: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            is_engine = "streamer.service" in " ".join(process.cmdline())
            if is_engine and process.environ().get(TAG) == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _check_samples(ranks: list[list[dict]]) -> int:
    """Every sample once in each epoch that both ranks have finished; returns how many epochs."""
    finished = min(max(line["finished"] for line in lines if "finished" in line) for lines in ranks)
    got: dict[int, Counter[int]] = defaultdict(Counter)
    for lines in ranks:
        for line in lines:
            if "numbers" in line:
                got[line["epoch"]].update(line["numbers"])
    for epoch in range(finished + 1):
        assert got[epoch] == Counter(range(SAMPLES)), epoch
    return finished + 1


def test_a_job_outlives_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of two ranks, whose keys expire and whose engine is killed twice, reads every sample once.
    No batch waits long for a renewal of the keys.
    """
    tag = uuid.uuid4().hex
    with bucket() as issuer:
        set_up("IRSA", issuer, tmp_path, monkeypatch)
        monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "r"))
        monkeypatch.setenv("STREAMER_JOB", "job")
        monkeypatch.setenv(TAG, tag)
        begun = time.monotonic()
        ranks = [_start(rank, tmp_path) for rank in (0, 1)]
        kills = []
        for share in (1 / 3, 2 / 3):
            time.sleep(max(0.0, begun + share * SECONDS - time.monotonic()))  # the faults have their times
            for pid in _engines(tag):
                os.kill(pid, signal.SIGKILL)
                kills.append(time.time())
        codes = [rank.wait(SECONDS + 300) for rank in ranks]
    logs = [(tmp_path / f"log{rank}").read_text()[-3000:] for rank in (0, 1)]
    assert codes == [0, 0], logs
    assert len(kills) == 2
    lines = [[json.loads(line) for line in (tmp_path / f"rank{rank}").read_text().splitlines()] for rank in (0, 1)]
    epochs = _check_samples(lines)
    waits = [
        line["waited"]
        for one in lines
        for line in [line for line in one if "waited" in line][1:]  # the first waits for the index
        if not any(kill <= line["at"] <= kill + START_SECONDS for kill in kills)
    ]
    print(
        f"\n{epochs} epochs, {len(waits)} batches; longest wait {max(waits):.2f} s; keys {issuer.issued}, "
        f"issuer {dict(issuer.outcomes)}, refused {issuer.refused}"
    )
    assert issuer.issued >= SECONDS / LIFETIME_SECONDS
    assert issuer.outcomes.total() - issuer.outcomes["good"] >= 2
    assert max(waits) <= MOST_SECONDS, (max(waits), logs)
