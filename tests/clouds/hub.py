"""A Hugging Face Hub with one dataset repository, and the host to which it redirects reads of files.

Source: Hugging Face, "Hub API Endpoints": GET /api/datasets/{repo}/revision/{revision} and
/api/datasets/{repo}/tree/{revision}/{path} (recursive, expand); "Download files from the Hub": GET
/datasets/{repo}/resolve/{revision}/{path}, which answers 302 with a signed url of a content delivery network.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

REPOSITORY = "org/set"
TOKEN = "hf_emulated"
_REVISION = re.compile(rf"/api/datasets/{REPOSITORY}(?:/revision/([^/]+))?")
_TREE = re.compile(rf"/api/datasets/{REPOSITORY}/tree/([^/]+)/?(.*)")
_FILE = re.compile(rf"/datasets/{REPOSITORY}/resolve/([^/]+)/(.+)")


class Hub:
    """Stands for the Hugging Face Hub and the host to which it redirects reads of files.

    Like them, it wants the token, lists trees by commit, and gives signed urls that end. It has one
    repository, one page of a listing, and takes no uploads.

    Attributes:
        commits: the files as of each commit, oldest first; `main` is the last one.
        asked: path of each request to the hub, and of each to the network of delivery.
        leaked: paths of requests that took the token to the network of delivery.
        resolved: paths for which a signed url was given.
        signed_seconds: for how long one holds.
        refuses_signed_before: signed urls below this number are refused.
        commits_before_tree: pushed before the next listing is answered.
    """

    def __init__(self) -> None:
        self.commits: list[dict[str, bytes]] = []
        self.asked: list[str] = []
        self.delivered: list[str] = []
        self.leaked: list[str] = []
        self.resolved: list[str] = []
        self.refuses_signed_before = 0
        self.commits_before_tree: list[dict[str, bytes]] = []
        self.signed_seconds = 3600.0
        self.url = self.delivery = ""

    def commit(self, **files: bytes) -> str:
        """Changes files; returns the commit."""
        self.commits.append({**(self.commits[-1] if self.commits else {}), **_named(files)})
        return _oid(len(self.commits) - 1)

    def at(self, revision: str) -> int | None:
        """The commit of a branch or of a commit's name."""
        number = len(self.commits) - 1 if revision == "main" else int(revision, 16) - 1 if len(revision) == 40 else -1
        return number if 0 <= number < len(self.commits) else None

    def changed_in(self, path: str, at: int) -> int:
        """The commit in which a file changed last, seen from one."""
        content = self.commits[at][path]
        return next(n for n in range(at + 1) if all(self.commits[m].get(path) == content for m in range(n, at + 1)))


def _named(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name.replace("__", "/").replace("_dot_", "."): content for name, content in files.items()}


def _oid(number: int) -> str:
    return f"{number + 1:040x}"


class _Handler(BaseHTTPRequestHandler):
    """Answers one request a connection, for either host."""

    protocol_version = "HTTP/1.0"  # no connection is kept, which would be waited for at the end
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Writes no log of requests."""

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: object) -> None:
        self.reply(200, json.dumps(value).encode(), Content_Type="application/json")


class _HubHandler(_Handler):
    """Answers as the hub: revisions, trees, and redirections of files."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        self.hub.asked.append(path)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.reply(401, X_Error_Code="GatedRepo")
        elif (found := _REVISION.fullmatch(path)) and (at := self.hub.at(found[1] or "main")) is not None:
            self.json({"id": REPOSITORY, "sha": _oid(at), "private": False, "tags": [], "downloads": 0, "likes": 0})
        elif (found := _TREE.fullmatch(path)) and self.hub.at(found[1]) is not None:
            while self.hub.commits_before_tree:
                self.hub.commit(**self.hub.commits_before_tree.pop())
            at = self.hub.at(found[1])
            assert at is not None
            self.json(self._tree(found[2], at, is_expanded=query.get("expand", [""])[0].lower() == "true"))
        elif (found := _FILE.fullmatch(path)) and (at := self.hub.at(found[1])) is not None:
            self.hub.resolved.append(path)
            number = len(self.hub.resolved)
            ends = int(time.time() + self.hub.signed_seconds)
            self.reply(
                302, Location=f"{self.hub.delivery}/{at}/{found[2]}?Expires={ends}&Signature={number}&Key-Pair-Id=K"
            )
        else:
            self.reply(404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET

    def _tree(self, folder: str, at: int, *, is_expanded: bool) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = []
        for path, content in self.hub.commits[at].items():
            if path.startswith(folder):
                entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
                if is_expanded:
                    when = {"id": _oid(self.hub.changed_in(path, at)), "title": "t", "date": "2026-01-01T00:00:00.000Z"}
                    entry["lastCommit"] = when
                entries.append(entry)
        return entries


class _DeliveryHandler(_Handler):
    """Answers as the content delivery network: ranges of files by signed urls."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        at, _, path = unquote(parts.path).lstrip("/").partition("/")
        self.hub.delivered.append(path)
        if "Authorization" in self.headers:
            self.hub.leaked.append(path)
        query = parse_qs(parts.query)
        is_revoked = int(query["Signature"][0]) < self.hub.refuses_signed_before
        if is_revoked or int(query["Expires"][0]) < time.time():
            self.reply(403)
            return
        content = self.hub.commits[int(at)][path]
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        piece = content[first : last + 1]
        where = f"bytes {first}-{first + len(piece) - 1}/{len(content)}"
        self.reply(206, piece, Content_Range=where, ETag='"of-the-delivery"')


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serves both hosts on ports of their own, in threads of this process."""
    hub = Hub()
    servers = []
    for kind in (_HubHandler, _DeliveryHandler):
        server = ThreadingHTTPServer(("127.0.0.1", 0), type(kind.__name__, (kind,), {"hub": hub}))
        server.daemon_threads = False
        servers.append((server, Thread(target=server.serve_forever, args=(0.05,))))
    hub.url, hub.delivery = (f"http://127.0.0.1:{server.server_address[1]}" for server, _ in servers)
    for _, thread in servers:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in servers:
            server.shutdown()
            thread.join()
            server.server_close()
