"""deploy/near/nginx.conf: an nginx cache between streamer and a bucket."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamer.errors import ObjectChangedError
from streamer.manifest.model import ObjectRecord
from streamer.store import ObjectStore, open_store
from tests.contract.store_contract import listed, read

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("s3sim") is None or shutil.which("nginx") is None, reason="s3sim or nginx is not installed"
    ),
    pytest.mark.usefixtures("warm_runtime"),
]
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "near" / "nginx.conf"
SIZE = 20_000_000
OBJECTS = {"a.tar": os.urandom(SIZE), "odd/with space+ü.tar": os.urandom(SIZE), "small": b"x"}
READ_BYTES = 3_000_000
# Where Debian's build puts them, which only root may write.
TEMPORARY = "".join(f"{kind}_temp_path {kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))


class Bucket:
    """s3sim with one bucket, as a process of its own; it counts the objects read and the bytes sent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for key, content in OBJECTS.items():
            self.put(key, content)
        command = ["s3sim", "start", "--root", str(root)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        self.address = next(word for word in said.split() if word.startswith("http://")).rstrip("/")

    def put(self, key: str, content: bytes) -> None:
        path = self.root / "bucket" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("new").write_bytes(content)
        path.with_name("new").replace(path)

    def sent_since(self) -> tuple[int, int]:
        """Objects read and bytes sent since the last call."""
        request = urllib.request.Request(f"{self.address}/__stats/reset", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            counts = json.load(answer)
        return counts["object_gets"], counts["bytes_sent"]

    def stop(self) -> None:
        subprocess.run(["s3sim", "stop", "--port", self.address.rsplit(":", 1)[1]], check=True, capture_output=True)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    made = Bucket(tmp_path / "store")
    yield made
    made.stop()


@pytest.fixture
def near(bucket: Bucket, tmp_path: Path) -> Iterator[str]:
    """The address of an nginx with the configuration as it is, but for places and addresses."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    changes = {
        "/var/cache/near": str(tmp_path / "near"),
        "minio.storage.svc:9000": bucket.address.removeprefix("http://"),
        "listen 9000": f"listen 127.0.0.1:{port}",
        "http {\n": "http {\n" + TEMPORARY,
    }
    text = CONFIGURATION.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = tmp_path / "nginx.conf"
    file.write_text(text)
    command = ["nginx", "-p", str(tmp_path), "-c", str(file), "-e", str(tmp_path / "error.log")]
    # Workers of a master of root could not enter the test's folder.
    user = "user root;" if os.geteuid() == 0 else ""
    process = subprocess.Popen([*command, "-g", f"daemon off; pid nginx.pid; {user}"])
    try:
        deadline = time.monotonic() + 20
        while not answers(port):
            assert process.poll() is None, (tmp_path / "error.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def everything(store: ObjectStore) -> dict[str, bytes]:
    """All objects, each in ranges of 3 MB; by key."""
    records = await listed(store, "s3://bucket/")
    return {url.removeprefix("s3://bucket/"): await whole(store, record) for url, record in records.items()}


async def whole(store: ObjectStore, record: ObjectRecord) -> bytes:
    starts = range(0, record.size, READ_BYTES)
    pieces = [read(store, record, start, min(record.size, start + READ_BYTES)) for start in starts]
    return b"".join(await asyncio.gather(*pieces))


@pytest.mark.parametrize("client", ["curl", "obstore"])
async def test_a_second_pass_reads_nothing_from_the_store(near: str, bucket: Bucket, client: str) -> None:
    """Through the nginx cache each byte is read from the store once; a second pass asks the store only for listings."""
    store = open_store("s3://bucket", {"endpoint_url": near, "anon": True}, client=client)
    try:
        assert await everything(store) == OBJECTS
        gets, sent = bucket.sent_since()
        assert gets == 3 + 3 + 1  # slices of 8 MiB
        assert sent < 1.001 * 2 * SIZE
        assert await everything(store) == OBJECTS
        gets, sent = bucket.sent_since()
        assert gets == 0
        assert sent < 10_000
    finally:
        await store.aclose()


async def test_a_changed_object(near: str, bucket: Bucket) -> None:
    """A replaced object is read through the cache as its old version where cached, as an error elsewhere,
    and as its new version once it is listed again.
    """
    store = open_store("s3://bucket", {"endpoint_url": near, "anon": True})
    try:
        (old,) = (await listed(store, "s3://bucket/a.tar")).values()
        head = await read(store, old, 0, 1000)
        new = os.urandom(SIZE)
        bucket.put("a.tar", new)
        assert await read(store, old, 0, 1000) == head == OBJECTS["a.tar"][:1000]
        with pytest.raises(ObjectChangedError):
            await read(store, old, SIZE - 1000, SIZE)
        (record,) = (await listed(store, "s3://bucket/a.tar")).values()
        assert record.version != old.version
        assert await whole(store, record) == new
        bucket.sent_since()
        assert await whole(store, record) == new
        assert bucket.sent_since()[0] == 0
    finally:
        await store.aclose()


async def test_nothing_is_written_through_it(near: str) -> None:
    """The nginx cache refuses writes, since it passes on only reads."""
    store = open_store("s3://bucket", {"endpoint_url": near, "anon": True})
    try:
        with pytest.raises(PermissionError):
            await store.put("s3://bucket/new", b"x")
    finally:
        await store.aclose()
