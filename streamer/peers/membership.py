"""Follows the members that the configuration names: looks them up, asks who they are, says when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from streamer.peers.client import PeerClient
from streamer.peers.lookup import Lookup
from streamer.peers.protocol import Facts
from streamer.peers.roster import Roster
from streamer.placement.members import Member

_ROUND_SECONDS = 10.0
# Engines that start together find each other sooner.
_FIRST_ROUND_SECONDS = 1.0
_FIRST_SECONDS = 60.0


async def followed(lookup: Lookup, client: PeerClient, me: Facts) -> AsyncIterator[tuple[Member, ...]]:
    """Yields the other members: first after one round of asking all addresses, then at each change.

    Args:
        lookup: returns the addresses.
        client: asks them; on its loop.
        me: facts of this engine.
    """
    time, roster = asyncio.get_running_loop().time, Roster(me, client.warn)
    begun = time()
    known: tuple[Member, ...] | None = None

    async def ask(address: str) -> None:
        if (facts := await client.facts(address)) is not None:
            roster.answered(address, facts, time())

    while True:
        try:
            roster.listed(await lookup(), time())
        except OSError as error:  # TimeoutError is one
            client.warn("list", f"cannot be looked up: {error!r}; the members stay as they were")
        async with asyncio.TaskGroup() as asked:
            for address in roster.to_ask(time(), client.is_probed):
                asked.create_task(ask(address))
        if (found := roster.members()) != known:
            for gone in {member.address for member in known or ()} - {member.address for member in found}:
                client.forget(gone)
            known = found
            yield found
        is_first = roster.has_unknown and time() - begun < _FIRST_SECONDS
        with suppress(TimeoutError):  # or until a peer is up again
            async with asyncio.timeout(_FIRST_ROUND_SECONDS if is_first else _ROUND_SECONDS):
                address, facts = await client.recovered.get()
                roster.answered(address, facts, time())
