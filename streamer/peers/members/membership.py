"""Follows the members: looks them up, asks who they are, says when that changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from streamer.peers.client import PeerClient
from streamer.peers.members.lookup import Lookup
from streamer.peers.members.roster import Roster
from streamer.peers.protocol import Facts
from streamer.placement.members import Member

logger = logging.getLogger(__name__)

_ROUND_SECONDS = 10.0
# Engines that start together find each other sooner.
_FIRST_ROUND_SECONDS = 1.0
_FIRST_SECONDS = 60.0


class Membership:
    """Follows the members. On the engine's loop.

    Args:
        lookup: where the addresses are from.
        client: asks them.
        me: what this engine says of itself.
    """

    def __init__(self, lookup: Lookup, client: PeerClient, me: Facts) -> None:
        self._lookup = lookup
        self._client = client
        self._roster = Roster(me, client.warn)
        self._news = asyncio.Event()
        client.on_facts = self._answered

    def __repr__(self) -> str:
        return f"Membership({self._roster!r})"

    async def members(self) -> AsyncIterator[tuple[Member, ...]]:
        """See `base.Peers`."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        known: tuple[Member, ...] | None = None
        while True:
            await self._round(loop.time())
            if (found := self._roster.members()) != known:
                for gone in {member.address for member in known or ()} - {member.address for member in found}:
                    self._client.forget(gone)
                known = found
                yield found
            is_first = self._roster.has_unknown and loop.time() - begun < _FIRST_SECONDS
            await self._sleep(_FIRST_ROUND_SECONDS if is_first else _ROUND_SECONDS)

    async def _sleep(self, seconds: float) -> None:
        """Until the next round, or until a peer is up again."""
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _round(self, now: float) -> None:
        try:
            self._roster.listed(await self._lookup(), now)
        except OSError as error:  # TimeoutError is one
            self._client.warn("list", f"cannot be looked up: {error!r}; the members stay as they were")
        async with asyncio.TaskGroup() as asked:
            for address in self._roster.to_ask(now, self._client.is_probed):
                asked.create_task(self._ask(address))

    async def _ask(self, address: str) -> None:
        if (facts := await self._client.facts(address)) is not None:
            self._answered(address, facts)

    def _answered(self, address: str, facts: Facts) -> None:
        self._roster.answered(address, facts, asyncio.get_running_loop().time())
        self._news.set()
