"""A pack that is killed, runs twice, or meets a full disk or a failing store ends with the same bytes or a clear error.

The store is moto's server, whose ETags follow from the bytes, so that manifests can be compared as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import obstore
import pytest
from obstore.store import S3Store

import streamer
from examples.bucket.store import request
from streamer.errors import PackError
from tests.disks import small_disk

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

pytestmark = pytest.mark.usefixtures("warm_runtime")

URL = "s3://packed/train/"
PROGRAM = Path(__file__).with_name("pack_samples.py")


class Failing:
    """Stands for a store under load: WSGI middleware that answers uploads with 503 as `script` says.

    It counts the uploads that it passes on.

    Args:
        application: the store.
    """

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self.script: Callable[[str], bool] = lambda path: False
        self.written: list[str] = []

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("PUT", "POST"):
            path = f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
            if self.script(path):
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", "0")])
                return []
            self.written.append(path)
        return self._application(environ, start_response)


class Store:
    """The bucket of moto's server behind `Failing`, with a client for what tests compare."""

    def __init__(self, endpoint: str, failing: Failing) -> None:
        self.options = {"key": "testing", "secret": "testing", "client_kwargs": {"endpoint_url": endpoint}}
        self.endpoint, self.failing = endpoint, failing
        self.client = S3Store(
            "packed",
            endpoint=endpoint,
            access_key_id="testing",
            secret_access_key="testing",
            client_options={"allow_http": True},
        )

    def objects(self) -> dict[str, bytes]:
        """All objects by name; receipts as well, they have no clock in them."""
        names = [meta["path"] for page in obstore.list(self.client) for meta in page]
        return {name: bytes(obstore.get(self.client, name).bytes()) for name in sorted(names)}

    def names(self) -> set[str]:
        """The names of all objects."""
        return {meta["path"] for page in obstore.list(self.client) for meta in page}

    def empty(self) -> None:
        """Deletes all objects."""
        if names := sorted(self.names()):
            obstore.delete(self.client, names)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Store]:
    """moto's server in a thread of this process, with an empty bucket."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        # One request a connection: none is open at the end.
        protocol_version = "HTTP/1.0"

        def log(self, *arguments: object) -> None:
            """Logs nothing."""

    failing = Failing(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, failing, threaded=True, request_handler=Quiet)
    server.daemon_threads = False  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found = Store(f"http://127.0.0.1:{server.server_port}", failing)
    try:
        request(found.endpoint, "PUT", "/packed")
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def store(bucket: Store) -> Store:
    """The bucket, empty and without faults."""
    bucket.failing.script = lambda path: False
    bucket.empty()
    bucket.failing.written.clear()
    return bucket


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB; skipped where mounting is not allowed."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        yield disk


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 files of up to 400 bytes."""
    return make_files(tmp_path_factory.mktemp("pack") / "raw", 1000)


@pytest.fixture(scope="module")
def undisturbed(warm_runtime: None, bucket: Store, files: Path) -> dict[str, bytes]:
    """What a pack of the files gives."""
    bucket.empty()
    finish(start(files, bucket))
    return bucket.objects()


def make_files(folder: Path, count: int) -> Path:
    """Small files in class folders."""
    numbers = random.Random(1)
    for number in range(count):
        path = folder / f"{number % 10}/{number:06d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbers.randbytes(numbers.randrange(400)))
    return folder


def make_lines(folder: Path, count: int) -> Path:
    """JSON lines with lists of tokens."""
    numbers = random.Random(1)
    folder.mkdir()
    lists = ([numbers.randrange(50_000) for _ in range(numbers.randrange(40))] for _ in range(count))
    (folder / "a.jsonl").write_text("".join(f'{{"tokens": {tokens}}}\n' for tokens in lists))
    return folder


def start(source: Path, store: Store, shard_bytes: str = "80kB", output: str = "webdataset") -> subprocess.Popen[str]:
    """`streamer pack` on two processes, in a session of its own."""
    options = [
        "--output-format",
        output,
        "--out-storage-options",
        json.dumps(store.options),
        "--executor",
        "processes:2",
    ]
    command = [sys.executable, "-m", "streamer", "pack", str(source), "--out", URL, "--shard-bytes", shard_bytes]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Its output, after it has ended well."""
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return out


def children(pid: int) -> list[int]:
    """The processes that it has started."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def kill(process: subprocess.Popen[str]) -> None:
    """The coordinator alone; its processes end by themselves."""
    workers = [os.pidfd_open(pid) for pid in children(process.pid)]
    process.kill()
    process.communicate()
    for worker in workers:
        signal_when_ended(worker)


def signal_when_ended(handle: int) -> None:
    """Waits for the end of a process that is no child of this one."""
    import select

    assert select.select([handle], [], [], 60)[0]
    os.close(handle)


def until(condition: Callable[[], bool]) -> None:
    """Waits for a state of the store."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shards(store: Store) -> int:
    """Receipts that are there."""
    return sum(".streamer/pack/" in name and "job.json" not in name for name in store.names())


@pytest.mark.slow
def test_a_killed_pack_goes_on(undisturbed: dict[str, bytes], store: Store, files: Path) -> None:
    """A pack that is killed and started again writes the bytes of an undisturbed one, and no finished shard twice.
    The pack's processes end with it, and it leaves no manifest.
    """
    process = start(files, store)
    until(lambda: shards(store) >= 3)
    kill(process)
    assert "train/.streamer/root.json" not in store.names()
    there = {name for name in store.names() if name.endswith(".tar")}
    receipts = shards(store)
    assert 3 <= receipts < sum(name.endswith(".tar") for name in undisturbed)
    store.failing.written.clear()
    finish(start(files, store))
    assert store.objects() == undisturbed
    again = {path.partition("?")[0].removeprefix("/packed/") for path in store.failing.written}
    assert sum(name in again for name in there) <= len(there) - receipts


@pytest.mark.slow
def test_a_killed_worker_costs_its_task(undisturbed: dict[str, bytes], store: Store, files: Path) -> None:
    """A pack whose worker is killed goes on with another one and writes the bytes of an undisturbed pack."""
    process = start(files, store)
    until(lambda: shards(store) >= 2)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    finish(process)
    assert store.objects() == undisturbed


@pytest.mark.slow
def test_two_packs_of_one_job_end_well(undisturbed: dict[str, bytes], store: Store, files: Path) -> None:
    """Two packs of one job at once end with the same output and the bytes of an undisturbed pack.
    The second may find shards of the first.
    """
    first, second = start(files, store), start(files, store)
    assert finish(first) == finish(second)
    assert store.objects() == undisturbed


@pytest.mark.slow
def test_two_packs_into_one_folder_end_well(files: Path, tmp_path: Path) -> None:
    """Two packs into one local folder leave a manifest of the files that are there, although versions are times."""
    command = [sys.executable, "-m", "streamer", "pack", str(files), "--out", f"{tmp_path}/tars", "--shard-bytes"]
    both = [
        subprocess.Popen([*command, "100kB"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "ab"
    ]
    for process in both:
        finish(process)
    verify = [sys.executable, "-m", "streamer", "verify", f"{tmp_path}/tars", "--every"]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_killed_program_goes_on(store: Store) -> None:
    """A program that packs and is killed makes its samples again, but does not upload again shards that are there."""

    def begin() -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), URL, "1000", json.dumps(store.options)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    finish(begin())
    undisturbed = store.objects()
    store.empty()
    process = begin()
    until(lambda: shards(store) >= 3)
    kill(process)
    store.failing.written.clear()
    finish(begin())
    assert store.objects() == undisturbed
    written = [path for path in store.failing.written if ".tar" in path]
    assert len(written) <= sum(name.endswith(".tar") for name in undisturbed) - 3


@pytest.mark.slow
def test_a_killed_upload_leaves_no_parts(store: Store, tmp_path: Path) -> None:
    """The next run of a pack removes the parts of a killed upload, and leaves those of others.
    The store keeps and bills them, out of sight.
    """
    source = tmp_path / "raw"
    (source / "0").mkdir(parents=True)
    for number in range(9):
        (source / "0" / f"{number}.bin").write_bytes(random.Random(number).randbytes(1_000_000))
    s3 = boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    others = s3.create_multipart_upload(Bucket="packed", Key="train/other.bin")["UploadId"]

    def uploads() -> dict[str, str]:
        return {each["UploadId"]: each["Key"] for each in s3.list_multipart_uploads(Bucket="packed").get("Uploads", ())}

    # The second part is never taken.
    store.failing.script = lambda path: "partNumber=2" in path
    process = start(source, store, "20MB")
    until(lambda: any("partNumber=1" in path for path in store.failing.written))
    kill(process)
    assert set(uploads().values()) == {"train/shard-000000.tar", "train/other.bin"}
    store.failing.script = lambda path: False
    finish(start(source, store, "20MB"))
    assert uploads() == {others: "train/other.bin"}
    s3.abort_multipart_upload(Bucket="packed", Key="train/other.bin", UploadId=others)
    assert {name for name in store.names() if name.endswith(".tar")} == {"train/shard-000000.tar"}
    store.empty()  # moto has a file for an object of this size


@pytest.mark.slow
def test_uploads_outlast_a_busy_store(store: Store) -> None:
    """A pack completes its uploads, parts included, at a store that answers every third write with 503."""
    numbers = random.Random(2)
    count = 0

    def every_third(path: str) -> bool:
        nonlocal count
        count += 1
        return count % 3 == 0

    store.failing.script = every_third
    made = ({"bin": numbers.randbytes(5_000_000)} for _ in range(8))
    packed = streamer.pack(made, URL, shard_bytes="20MB", out_storage_options=store.options)
    store.failing.script = lambda path: False
    assert (packed.shards, packed.samples) == (2, 8)
    assert any("partNumber=3" in path for path in store.failing.written)
    assert count > len(store.failing.written)
    numbers = random.Random(2)
    raw = store.objects()["train/shard-000000.tar"]
    assert numbers.randbytes(5_000_000) == raw[512:5_000_512]
    store.empty()  # closes the temporary files that the server holds


def test_a_slow_upload_is_no_outage(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A store that takes 2.5 s to answer an upload causes no warning that it serves nothing:
    a shard is answered when all of it is there.
    """

    def wait(path: str) -> bool:
        if "partNumber=1" in path or path.startswith("/packed/train/shard"):
            time.sleep(2.5)
        return False

    store.failing.script = wait
    streamer.pack(({"bin": bytes(1000)} for _ in range(10)), URL, out_storage_options=store.options)
    assert [record.message for record in caplog.records if "waiting for" in record.message] == []


@pytest.mark.parametrize("made", ["files", "samples"])
def test_a_full_disk_is_said(
    files: Path, full_disk: Path, monkeypatch: pytest.MonkeyPatch, made: str, store: Store
) -> None:
    """A full disk for temporary files raises PackError with its folder and the remedy; no file is left in it."""
    monkeypatch.setattr("tempfile.tempdir", str(full_disk))
    monkeypatch.setenv("TMPDIR", str(full_disk))
    source = files if made == "files" else ({"bin": bytes(10_000)} for _ in range(1000))
    with pytest.raises(PackError, match=r"the disk of .*streamer-pack-.* is full: .*TMPDIR"):
        streamer.pack(source, URL, shard_bytes="4MB", out_storage_options=store.options, executor="processes:1")
    assert list(full_disk.rglob("*.spool")) == []
    assert "train/.streamer/root.json" not in store.names()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("make", "count", "size"),
    [(make_files, 10_000, ("200kB",)), (make_files, 100_000, ("2MB",)), (make_lines, 20_000, ("100kB", "tokens"))],
)
def test_kills_at_random_places(
    store: Store, tmp_path: Path, make: Callable[[Path, int], Path], count: int, size: tuple[str, ...]
) -> None:
    """A pack whose coordinator or workers are killed twenty times writes the bytes of an undisturbed pack:
    shards, receipts and manifest.
    """
    source = make(tmp_path / "raw", count)
    begun = time.monotonic()
    finish(start(source, store, *size))
    seconds = time.monotonic() - begun
    undisturbed = store.objects()
    numbers = random.Random(3)
    kills = 0
    while kills < 20:
        store.empty()
        process = start(source, store, *size)
        while process.poll() is None and kills < 20:
            time.sleep(numbers.random() * seconds / 4)
            if process.poll() is not None:
                break
            workers = children(process.pid)
            if workers and numbers.random() < 0.5:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(numbers.choice(workers), signal.SIGKILL)
                    kills += 1
                continue
            kill(process)
            kills += 1
            process = start(source, store, *size)
        finish(process)
        assert store.objects() == undisturbed
