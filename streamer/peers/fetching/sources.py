"""Brings chunks from peers, or from the store. On the engine's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from streamer.base.threads import in_thread
from streamer.engine.fetching.fetches import Fetch
from streamer.engine.fetching.publisher import Publisher
from streamer.engine.fetching.sources import StoreSource
from streamer.errors import IntegrityError
from streamer.fetch.fetcher import Fetched
from streamer.peers.client import Asked, PeerClient, Refusal
from streamer.peers.fetching.race import race
from streamer.peers.fetching.received import Received, checked
from streamer.peers.fetching.routes import Ask, Found, whom_to_ask
from streamer.peers.placement.homes import Homes

logger = logging.getLogger(__name__)


class SourceCounts(msgspec.Struct):
    """Counts since the start.

    Attributes:
        peer_chunks: chunks that came from peers.
        peer_bytes: bytes of their samples.
        peer_hedge_losses: late requests whose chunk came from the store.
    """

    peer_chunks: int = 0
    peer_bytes: int = 0
    peer_hedge_losses: int = 0


class PeerSource:
    """Asks peers for chunks, and the store where they are late or have none."""

    def __init__(self, store: StoreSource, publisher: Publisher, client: PeerClient, homes: Homes) -> None:
        self.count = SourceCounts()
        self._store = store
        self._publisher = publisher
        self._client = client
        self.use(homes)

    def __repr__(self) -> str:
        return f"PeerSource({self._homes!r}, {self.count!r})"

    def use(self, homes: Homes) -> None:
        """Takes the homes of other members; chunks may be where their homes were."""
        self._homes = homes
        self._found = Found()

    async def bring(self, fetch: Fetch) -> None:
        """See `fetching.sources.Bring`."""
        late, ask = asyncio.Event(), self._route(fetch)
        brought = None
        if ask is not None:
            brought = await race(self._ask(fetch, ask, late), late, lambda: self._store.fetch(fetch))
        if brought is None:
            await self._store.bring(fetch)
            return
        with contextlib.closing(brought):
            if isinstance(brought, Received):
                await self._publisher.publish_samples(fetch, brought.content, brought.offsets)
                self.count.peer_chunks += 1
                self.count.peer_bytes += len(brought.content)
            else:
                self.count.peer_hedge_losses += 1
                await self._publisher.publish(fetch, brought)

    def _route(self, fetch: Fetch) -> Ask | None:
        digest = fetch.dataset.manifest.digest
        found = self._found
        return whom_to_ask(
            self._homes.order(fetch.key),
            self._homes.me,
            self._client.is_up,
            lambda member: found.may_have(member, digest),
            for_peer=not fetch.waiters,
        )

    async def _ask(self, fetch: Fetch, ask: Ask, late: asyncio.Event) -> Received | None:
        digest = fetch.dataset.manifest.digest
        found = self._found
        asked = Asked(
            key=fetch.key,
            dataset=digest,
            length=int(fetch.dataset.file_bytes[fetch.chunk]),
            exact=not fetch.dataset.manifest.recoded,
            fetch=ask.fetch,
            due=fetch.due,
            owner=fetch.owner,
        )
        answer = await self._client.fetch_chunk(ask.member, asked, late)
        if not ask.fetch:
            found.record(ask.member, digest, not isinstance(answer, Refusal))
        return None if isinstance(answer, Refusal) else await self._checked(fetch, ask, answer)

    async def _checked(self, fetch: Fetch, ask: Ask, file: Fetched) -> Received | None:
        where = f"chunk {fetch.chunk} from peer {ask.member.address}"
        try:
            return await in_thread(None, checked, file, fetch.dataset, fetch.chunk, where)
        except BaseException as error:
            file.close()
            if not isinstance(error, IntegrityError):
                raise
            self._client.rejected(ask.member)
            logger.warning("%s; it is read from the store", error)
            return None
