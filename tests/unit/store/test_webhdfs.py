"""Uploads by webhdfs://, whose client does not look at the answer to a rename, to a server that speaks WebHDFS."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from streamer.errors import StoreError
from streamer.store import open_store

pytestmark = pytest.mark.process


class HdfsServer(ThreadingHTTPServer):
    """Serves files from memory by the REST API of Hadoop ("WebHDFS REST API"), to which clients append.

    Attributes:
        files: content of the files by path.
        stuck: end of the paths that are not moved. A move to a path that exists is answered with false, too.
        cut: number of bytes at the end of each appended part that are lost.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.stuck = "nothing"
        self.cut = 0


class _Handler(BaseHTTPRequestHandler):
    server: HdfsServer

    def _answer(self) -> None:
        url = urlsplit(self.path)
        asked = dict(parse_qsl(url.query))
        path = url.path.removeprefix("/webhdfs/v1")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        files = self.server.files
        status, answer = 200, {}
        if asked["op"] in ("CREATE", "APPEND") and "sent" not in asked:
            self.send_response(307)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}{self.path}&sent=1")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if asked["op"] == "CREATE":
            files[path], status = body, 201
        elif asked["op"] == "APPEND":
            files[path] += body[: len(body) - self.server.cut]
        elif asked["op"] == "MKDIRS":
            answer = {"boolean": True}
        elif asked["op"] == "RENAME":
            target = asked["destination"]
            assert target.startswith("/"), "Hadoop refuses it"
            answer = {"boolean": path in files and target not in files and not path.endswith(self.server.stuck)}
            if answer["boolean"]:
                files[target] = files.pop(path)
        elif asked["op"] == "DELETE":
            answer = {"boolean": files.pop(path, None) is not None}
        elif path in files:
            answer = {"FileStatus": {"type": "FILE", "length": len(files[path]), "modificationTime": 1}}
        else:
            status = 404
            answer = {"RemoteException": {"exception": "FileNotFoundException", "message": f"no {path}"}}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[HdfsServer]:
    """Serves one old object."""
    found = HdfsServer()
    found.files["/data/x.tar"] = b"old" * 1000
    serving = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    yield found
    found.shutdown()
    serving.join()
    found.server_close()


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A file of the same length as the old object."""
    (tmp_path / "new").write_bytes(b"new" * 1000)
    return tmp_path / "new"


async def test_an_upload_replaces_an_object(server: HdfsServer, new: Path) -> None:
    """An upload replaces an object, and leaves no other one, although HDFS renames nothing to a name that exists.

    The old object stayed, with the upload beside it, and no error said so.
    """
    url = f"webhdfs://127.0.0.1:{server.server_port}/data/x.tar"
    store = open_store(url, {})
    for _ in range(2):
        record = await store.put_file(url, new)
        assert (record.url, record.size) == (url, 3000)
        assert server.files == {"/data/x.tar": b"new" * 1000}
    await store.aclose()


@pytest.mark.parametrize(("stuck", "cut"), [("", 0), (".part", 0), ("nothing", 7)])
async def test_an_upload_that_fails_leaves_the_old_object(server: HdfsServer, new: Path, stuck: str, cut: int) -> None:
    """An upload that the store does not move, or not write whole, is a StoreError, and leaves the old object alone."""
    server.stuck = stuck
    server.cut = cut
    url = f"webhdfs://127.0.0.1:{server.server_port}/data/x.tar"
    store = open_store(url, {})
    said = "has 2993 bytes after an upload of 3000" if cut else "does not replace this object"
    with pytest.raises(StoreError, match=said):
        await store.put_file(url, new)
    assert server.files == {"/data/x.tar": b"old" * 1000}
    await store.aclose()
