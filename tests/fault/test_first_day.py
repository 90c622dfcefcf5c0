"""Faults that pass end no job: a cache damaged in mid-epoch, a store that is away, and an engine that cannot start.

Every job is a real one, in a process of its own: engine, two workers, every sample compared. What its user reads is
what it logs at WARNING, on stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

from tests.disks import small_disk
from tests.fault.first_day_job import content_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SAMPLES, NBYTES, BATCH = 480, 40_000, 8
BATCHES = SAMPLES // BATCH
SCRIPT = Path(__file__).with_name("first_day_job.py")


class Job:
    """A trainer in a process of its own.

    Args:
        folder: of its own; engine sockets have names of at most 107 bytes.
        url: of the data.
        settings: what the trainer is told besides.
    """

    def __init__(self, folder: Path, url: str, environment: dict[str, str] | None = None, **settings: object) -> None:
        self.cache = folder / "c"
        told = {
            "url": url,
            "cache": str(self.cache),
            "cache_bytes": 256 << 20,
            "workers": 2,
            "epochs": 3,
            "samples": SAMPLES,
            "pause_seconds": 0.02,
            **settings,
        }
        # Not on the disk that is filled: its last line would be lost.
        self._runtime, self._errors = folder / "r", folder.with_name(f"{folder.name}-stderr.txt")
        root = str(SCRIPT.parent.parent.parent)
        path = [(environment or {}).get("PYTHONPATH", ""), root]
        variables = {**os.environ, "STREAMER_RUNTIME_DIR": str(self._runtime), "PYTHONPATH": os.pathsep.join(path)}
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), json.dumps(told)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=variables,
            )

    def run(self, at_batch: Callable[[int], None] = lambda batch: None) -> dict[str, object]:
        """The last line of the trainer; `at_batch` is called after each batch."""
        assert self.process.stdout is not None
        last: dict[str, object] = {}
        with self.process:
            for line in self.process.stdout:
                last = json.loads(line)
                if "batch" in last:
                    at_batch(int(str(last["batch"])))
        assert self.process.returncode == 0, self._errors.read_text()[-4000:]
        print(f"trainer: {last}")
        print("".join(f"  {line}\n" for line in self.warnings))
        return last

    @property
    def warnings(self) -> list[str]:
        """What the user reads."""
        lines = self._errors.read_text().splitlines()
        return [line for line in lines if line.startswith(("WARNING", "ERROR")) and "indexing" not in line]

    def warned(self, text: str) -> int:
        return sum(text in line for line in self.warnings)

    def warned_only(self, text: str) -> int:
        """As `warned`; nothing else was said, but that a busy machine makes the loader wait."""
        said = [line for line in self.warnings if "waiting for" not in line]
        assert all(text in line for line in said), said
        return len(said)

    def chunks(self) -> list[Path]:
        return sorted(self.cache.glob("chunks/*/*.chunk"))


@pytest.fixture
def raw(tmp_path: Path) -> str:
    """480 files of 40 kB: 19 MB in about 150 chunks."""
    for number in range(SAMPLES):
        path = tmp_path / "data" / f"class{number % 4}" / f"{number:04}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content_of(path.stem, NBYTES))
    return str(tmp_path / "data")


# ---------------------------------------------------------------- the cache under attack


@pytest.mark.parametrize("workers", [0, 2])
def test_the_cache_folder_is_deleted_twice(tmp_path: Path, raw: str, workers: int) -> None:
    """A cache folder that is deleted in the middle of two epochs is made again, with one warning for each time."""
    job = Job(tmp_path, raw, workers=workers)

    def delete(batch: int) -> None:
        if batch in (BATCHES // 2, BATCHES + BATCHES // 2):
            shutil.rmtree(job.cache.rename(tmp_path / "away"))

    assert job.run(delete)["done"] == 3 * BATCHES
    assert job.warned_only("was removed by another program") == 2
    assert (job.cache / "root-id").exists()


def test_the_cache_folder_is_deleted_file_by_file(tmp_path: Path, raw: str) -> None:
    """A cache folder that another program still deletes file by file is made again, and no sample is lost."""
    job = Job(tmp_path, raw, pause_seconds=0.05)

    def delete(batch: int) -> None:
        if batch in (BATCHES // 2, BATCHES + BATCHES // 2):
            subprocess.run(["rm", "-rf", str(job.cache)], check=False, stderr=subprocess.DEVNULL)

    assert job.run(delete)["done"] == 3 * BATCHES
    assert job.warned_only("was removed by another program") == 2


def test_a_third_of_all_chunks_is_overwritten(tmp_path: Path, raw: str) -> None:
    """A job whose chunks are overwritten by a third in each epoch delivers every sample right, with one warning."""
    job, chance = Job(tmp_path, raw), random.Random(3)

    def overwrite(batch: int) -> None:
        if batch % BATCHES == BATCHES // 2:
            chunks = job.chunks()
            assert len(chunks) > 50
            for path in chance.sample(chunks, len(chunks) // 3):
                with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
                    file.write(chance.randbytes(path.stat().st_size))

    assert job.run(overwrite)["done"] == 3 * BATCHES
    assert job.warned_only("is wrong or cannot be read, and is fetched again") == 1


def test_the_disk_is_filled_by_another_program(tmp_path: Path, raw: str) -> None:
    """A job whose cache disk is filled by another program trains on, with chunks in memory and one warning."""
    with small_disk(tmp_path / "d", "32m") as disk:
        job = Job(disk, raw, cache_bytes=16 << 20)

        def fill(batch: int) -> None:
            if batch >= 5:  # again and again: what the cache evicts is room, too
                for name, piece in (("others", 1 << 20), ("crumbs", 4096)):
                    with contextlib.suppress(OSError), (disk / name).open("ab", buffering=0) as file:
                        while True:
                            file.write(bytes(piece))

        assert job.run(fill)["done"] == 3 * BATCHES
        assert job.warned_only("refuses writes (No space left on device)") == 1


@contextlib.contextmanager
def failing_disk(folder: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """An ext4 of 96 MiB and a call that makes it fail, as after an error of the device: it turns read-only."""
    image, place = folder / "image", folder / "d"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(96 << 20)
    make = ["mkfs.ext4", "-q", "-F", str(image)]
    mount = ["mount", "-o", "loop,errors=remount-ro", str(image), str(place)]
    if any(
        shutil.which(command[0]) is None or subprocess.run(command, check=False).returncode for command in (make, mount)
    ):
        pytest.skip("needs mkfs.ext4 and the right to mount a loop device")
    device = subprocess.run(["df", "--output=source", str(place)], check=True, capture_output=True, text=True).stdout
    trigger = Path("/sys/fs/ext4") / Path(device.split()[-1]).name / "trigger_fs_error"
    try:
        yield place, lambda: trigger.write_text("1")
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_the_disk_turns_read_only(tmp_path: Path, raw: str) -> None:
    """A job whose full cache disk turns read-only trains on, although no file can be written or removed."""
    with failing_disk(tmp_path) as (disk, fail):
        job = Job(tmp_path, raw, cache=str(disk / "c"), cache_bytes=12 << 20)
        assert job.run(lambda batch: fail() if batch == BATCHES // 2 else None)["done"] == 3 * BATCHES
        assert job.warned_only("refuses writes (Read-only file system)") == 1


# ---------------------------------------------------------------- the store is away


class Web(ThreadingHTTPServer):
    """Stands for a web server of tars, which refuses or keeps silent for as long as a test sets."""

    daemon_threads = True

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = objects
        self.refuses_until = 0.0
        self.silent_until = 0.0
        self.refused = 0
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{{00..{len(self.objects) - 1:02}}}.tar"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores the errors of clients that have left."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *arguments: object) -> None:
        """Writes no log of requests."""

    def _answer(self, *, body: bool) -> None:
        if (left := self.server.silent_until - time.monotonic()) > 0:
            self.server.stopping.wait(left + 5.0)  # what was asked in that time is never answered
            self.close_connection = True
            return
        if time.monotonic() < self.server.refuses_until:
            self.server.refused += 1
            self._send(503, b"", {"Content-Length": "0"})
            return
        content = self.server.objects[self.path.strip("/")]
        headers = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None:
            self._send(200, content if body else b"", {**headers, "Content-Length": str(len(content))})
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1]
        headers |= {"Content-Length": str(len(part)), "Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self._send(206, part if body else b"", headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server of 480 samples of 40 kB in 20 tars."""
    objects = {}
    for number in range(20):
        file = BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for sample in range(number, SAMPLES, 20):
                info = tarfile.TarInfo(f"{sample:04}.bin")
                info.size = NBYTES
                archive.addfile(info, BytesIO(content_of(f"{sample:04}", NBYTES)))
        objects[f"{number:02}.tar"] = file.getvalue()
    server = Web(objects)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.stopping.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_store_that_refuses_from_the_first_request_on(tmp_path: Path, web: Web) -> None:
    """A job whose store answers 503 for its first 20 s says so once after 1.5 s, and then trains."""
    web.refuses_until = time.monotonic() + 20.0
    job = Job(tmp_path, web.url, epochs=1, pause_seconds=0.0)
    end = job.run()
    assert end["done"] == BATCHES
    assert float(str(end["seconds"])) >= 10.0
    assert web.refused > 8
    assert job.warned("which has served nothing for 1.5 s (the store answered 503") == 1
    assert job.warned("requests that fail are repeated for 60 s") == 1


def test_a_store_that_falls_silent_in_mid_epoch(tmp_path: Path, web: Web) -> None:
    """A job whose store answers nothing for 25 s in mid-epoch says so once, and then trains on."""
    job = Job(tmp_path, web.url, epochs=1, cache_bytes=8 << 20, pause_seconds=0.05)

    def fall_silent(batch: int) -> None:
        if batch == 5:
            web.silent_until = time.monotonic() + 25.0

    end = job.run(fall_silent)
    assert end["done"] == BATCHES
    assert float(str(end["seconds"])) >= 25.0
    assert job.warned("which has served nothing for 1.5 s (no answer yet)") == 1


@pytest.mark.parametrize("silent_from", [0, 5])
def test_a_store_that_stays_silent(tmp_path: Path, web: Web, silent_from: int) -> None:
    """A store that stays silent is reported after 1.5 s, and is an error after the documented 60 s.
    A listing had eight tries of 30 s: 244 s; a first chunk up to eight of 10, 20, 40, 80 s (2026-11-23).
    """
    job = Job(tmp_path, web.url, epochs=1, cache_bytes=8 << 20, pause_seconds=0.05)
    since = time.monotonic()

    def fall_silent(batch: int) -> None:
        nonlocal since
        if batch >= silent_from and not web.silent_until:
            since = time.monotonic()
            web.silent_until = since + 1000.0

    fall_silent(0)
    end = job.run(fall_silent)
    assert end["error"] == "StoreTimeoutError"
    text = str(end["text"])
    assert re.search(
        r"http://127\.0\.0\.1:\d+/\d\d\.tar: .* tries in \d\d\.\d s\); the store served nothing for 6\d s", text
    )
    assert 60.0 <= time.monotonic() - since < 90.0
    assert job.warned("which has served nothing for 1.5 s (no answer yet)") == 1


# ---------------------------------------------------------------- an engine that cannot start


def test_an_engine_that_crashes_on_every_start(tmp_path: Path, raw: str) -> None:
    """A job whose engine crashes on each of six starts, with pauses between, ends with an error that names the log."""
    folder, starts = tmp_path / "sabotage", tmp_path / "starts.txt"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        'if "streamer.service" in sys.orig_argv:\n'
        f'    print("start", file=open({str(starts)!r}, "a"))\n'
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    job = Job(tmp_path, raw, environment={"PYTHONPATH": str(folder)})
    end = job.run()
    assert end["error"] == "EngineUnavailableError"
    assert "crashed 6 times in a row without progress and is not started again; its log is " in str(end["text"])
    assert 3.0 <= float(str(end["seconds"])) < 30.0
    assert len(starts.read_text().splitlines()) == 6
