"""A CurlStore for a url that a client of a service without [[datasets]] has chosen: it never reaches this machine.

Names are refused by the addresses that they resolve to. libcurl asks before each connection, including those of
redirects. obstore cannot ask, so the name is resolved before each of its requests.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from streamer.manifest.model import ObjectRecord
from streamer.store import guard, versions
from streamer.store.base import PIECE_BYTES, Take
from streamer.store.credentials.boto_keys import Keys
from streamer.store.credentials.key_ring import Issued, KeyRing
from streamer.store.curl.access import Access
from streamer.store.curl.store import CurlStore, MakeAccess
from streamer.store.obstore_store import MakeClient, Page
from streamer.store.places import Places
from streamer.store.reached import Reached
from streamer.store.redirects import host_of


class GuardedStore(CurlStore):
    """A CurlStore that refuses addresses of this machine; `place` is the url to which the client's choice leads."""

    def __init__(
        self,
        root: str,
        make_client: MakeClient,
        make_access: MakeAccess,
        way: Reached,
        ring: KeyRing[Keys | None] | None,
        *,
        places: Places,
        place: str,
    ) -> None:

        def guarded(issued: Issued[Keys | None] | None) -> Access | None:
            access = make_access(issued)
            return None if access is None else msgspec.structs.replace(access, guarded=True)

        super().__init__(root, make_client, guarded, way, ring, places=places)
        self._place = place

    async def get(
        self,
        target: ObjectRecord,
        start: int,
        stop: int,
        take: Take,
        *,
        piece_bytes: int = PIECE_BYTES,
        fresh: bool = False,
    ) -> None:
        """See ObjectStore.get."""
        if target.version.startswith(versions.VERSION) or await self._find_access() is None:  # obstore will read it
            await self._allowed()
        await super().get(target, start, stop, take, piece_bytes=piece_bytes, fresh=fresh)

    async def put(self, url: str, content: bytes) -> None:
        """See ObjectStore.put."""
        await self._allowed()
        await super().put(url, content)

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """See ObjectStore.put_file."""
        await self._allowed()
        return await super().put_file(url, path)

    async def _pages(self, folder: str, after: str | None = None) -> AsyncGenerator[Page, None]:
        await self._allowed()
        async for page in super()._pages(folder, after):
            yield page

    async def _head(self, url: str) -> ObjectRecord | None:
        await self._allowed()
        return await super()._head(url)

    async def _allowed(self) -> None:
        """Raises AccessDeniedError if the name is one of this machine's; one that does not resolve fails later."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host_of(self._place), None, type=socket.SOCK_STREAM)
        except OSError:
            return
        for *_, where in found:
            if guard.is_own(str(where[0])):
                raise guard.refusal(self._root, f"its address is {where[0]}")
