"""A server that lists a bucket of many objects which are nowhere: `python listed_bucket.py OBJECTS SECONDS`.

Answers ListObjectsV2 after so many seconds. Prints its address; `GET /` says how many pages it has listed.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

PAGE_OBJECTS = 1000
FOLDER_OBJECTS = 1300


def key_of(number: int) -> str:
    """Of class folders, as ImageNet's are named."""
    folder = number // FOLDER_OBJECTS
    return f"raw/n{folder:08d}/n{folder:08d}_{number}.JPEG"


def page(keys: Sequence[str], prefix: str, after: str) -> str:
    """One page of the keys behind one."""
    first = max(bisect_right(keys, after), bisect_right(keys, prefix))
    found = [key for key in keys[first : first + PAGE_OBJECTS] if key.startswith(prefix)]
    more = len(found) == PAGE_OBJECTS and first + PAGE_OBJECTS < len(keys)
    token = f"<NextContinuationToken>{escape(found[-1])}</NextContinuationToken>" if more else ""
    entries = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f'<ETag>"{number:032x}"</ETag><Size>{100_000 + number}</Size></Contents>'
        for number, key in enumerate(found, first)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>many</Name><KeyCount>{len(found)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        f"{token}{entries}</ListBucketResult>"
    )


class Handler(BaseHTTPRequestHandler):
    """Lists; there is no object of the name of the prefix."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    keys: Sequence[str] = ()
    seconds = 0.0
    pages = 0

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/":
            return self.answer(str(Handler.pages))
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        time.sleep(self.seconds)
        Handler.pages += 1
        after = query.get("continuation-token", query.get("start-after", ""))
        return self.answer(page(self.keys, query.get("prefix", ""), after))

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Logs nothing."""


def main() -> None:
    Handler.keys = sorted(map(key_of, range(int(sys.argv[1]))))
    Handler.seconds = float(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
