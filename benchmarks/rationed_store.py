"""A store in front of another one that refuses: more than so many requests per second, or old credentials.

    python benchmarks/rationed_store.py '{"upstream": "http://127.0.0.1:9000", "per_second": 200}'

Prints its endpoint, then serves until its standard input ends; then prints what it counted. A process of its own: what
it costs is not the reader's. Keys of the ration, all optional but `upstream`: per_second (requests granted, with a
burst of as many as a second's; beyond it 503), begins_after (seconds from the first request until that holds),
known_after (seconds from then on, after which grants and refusals are counted as late), retry_after (seconds, said with
each 503), expired_key (an access key whose requests are answered ExpiredToken after `expires_after` of them).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

_PIECE_BYTES = 1 << 20
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "host"}


@dataclass(frozen=True)
class Ration:
    """What is granted."""

    upstream: str
    per_second: float = 0.0
    begins_after: float = 0.0
    known_after: float = 10.0
    retry_after: float = 0.0
    expired_key: str = ""
    expires_after: int = 0


@dataclass
class Counted:
    """What happened to the reads of objects."""

    granted: int = 0
    refused: int = 0
    expired: int = 0
    late_granted: int = 0
    late_refused: int = 0


class RationedStore:
    """Judges each read of an object and passes it on."""

    def __init__(self, ration: Ration, upstream: aiohttp.ClientSession) -> None:
        self._ration, self._upstream = ration, upstream
        self._tokens, self._filled = ration.per_second, 0.0
        self._first = 0.0
        self.counted = Counted()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        if "Range" in request.headers:
            if self._is_expired(request):
                self.counted.expired += 1
                return _refusal(400, "ExpiredToken", {})
            late, granted = self._is_late(), self._take()
            if not granted:
                self.counted.refused += 1
                self.counted.late_refused += late
                asked = {"Retry-After": f"{self._ration.retry_after:g}"} if self._ration.retry_after else {}
                return _refusal(503, "SlowDown", asked)
            self.counted.granted += 1
            self.counted.late_granted += late
        return await self._passed_on(request)

    def _is_expired(self, request: web.Request) -> bool:
        key = self._ration.expired_key
        old = bool(key) and f"Credential={key}/" in request.headers.get("Authorization", "")
        return old and self.counted.granted >= self._ration.expires_after

    def _is_late(self) -> bool:
        now = time.monotonic()
        self._first = self._first or now
        return now - self._first >= self._ration.begins_after + self._ration.known_after

    def _take(self) -> bool:
        now = time.monotonic()
        if not self._ration.per_second or now - self._first < self._ration.begins_after:
            return True
        self._filled = self._filled or now
        earned = (now - self._filled) * self._ration.per_second
        self._tokens, self._filled = min(self._ration.per_second, self._tokens + earned), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def _passed_on(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = self._ration.upstream + request.raw_path
        async with self._upstream.request(request.method, url, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                await response.write(piece)
            return response


def _refusal(status: int, code: str, headers: dict[str, str]) -> web.Response:
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code></Error>'
    return web.Response(status=status, text=body, content_type="application/xml", headers=headers)


async def serve(ration: Ration) -> None:
    """Until standard input ends."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as upstream:
        store = RationedStore(ration, upstream)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", store.answer)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()
    print(json.dumps(asdict(store.counted)), flush=True)


def main() -> None:
    """Serves as the argument says."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    uvloop.run(serve(Ration(**told)))


if __name__ == "__main__":
    main()
