"""A bucket of very many objects: `python million_objects.py COUNT BYTES` prints its port and serves.

Each object has so many bytes, of which the first alone can be read.
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import parse_qs, urlsplit

PAGE = 1000


def page(count: int, size: int, query: dict[str, list[str]]) -> bytes:
    """A page of the listing; the token is the number of its first object."""
    prefix = query.get("prefix", [""])[0]
    first = int(query.get("continuation-token", ["0"])[0])
    last = min(first + PAGE, count)
    keys = (f"x/{number:06}.bin" for number in range(first, last))
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;e&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in keys
        if key.startswith(prefix)
    )
    onward = f"<NextContinuationToken>{last}</NextContinuationToken>" if last < count else ""
    return (
        f"<ListBucketResult><IsTruncated>{'true' if onward else 'false'}</IsTruncated>{onward}{entries}"
        "</ListBucketResult>"
    ).encode()


async def main(count: int, size: int) -> None:
    """Serves."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                line = (await reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n")[0]
                method, target, _ = line.split(" ")
                address = urlsplit(target)
                query = parse_qs(address.query)
                body = page(count, size, query) if "list-type" in query else b"a"
                status = "200 OK" if "list-type" in query or method == "HEAD" else "206 Partial Content"
                lines = [
                    f"HTTP/1.1 {status}",
                    'ETag: "e"',
                    f"Content-Length: {len(body)}",
                    f"Content-Range: bytes 0-0/{size}",
                ]
                writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if method == "HEAD" else body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
