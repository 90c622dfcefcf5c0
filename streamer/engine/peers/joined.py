"""An engine among its peers, from start to end: its homes follow the members, its counters join the engine's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from streamer.config import PeersConfig
from streamer.engine.engine import Engine
from streamer.engine.peers.lending import IDLE_SECONDS, Lending
from streamer.engine.peers.manifests import MissingManifests
from streamer.engine.peers.sources import PeerSource
from streamer.peers.addresses import joined as joined_address
from streamer.peers.addresses import split_address
from streamer.peers.base import Peers
from streamer.peers.opened import open_peers
from streamer.placement.homes import Homes
from streamer.placement.members import Member
from streamer.threads import in_thread

logger = logging.getLogger(__name__)

# Of a second each.
_TRIES = 10


@contextlib.asynccontextmanager
async def joined(
    engine: Engine, *, config: PeersConfig | None = None, token: str | None = None
) -> AsyncIterator[Neighbours]:
    """Asks peers before the store, and answers them, until the end of the block. Starts with those that answer now.

    Args:
        engine: running.
        config: None: that of the engine, with peers enabled.
        token: of a job that names the members (`Neighbours.move`); None: both as the configuration has them.

    Raises:
        ConfigError: `listen`, `members` or the token cannot be used.
    """
    config, space = config or engine.config.peers, engine.cache.space
    space.serves_peers = True
    engine.limit_changed(engine.cache.limits)
    me = Member(engine.cache.folder.root_id, config.listen, space.whole_limit_bytes)
    lending = Lending(engine)
    opening = open_peers(
        config,
        me=me,
        chunks_folder=engine.cache.folder.path,
        lender=lending,
        memory=engine.fetchers.memory,
        send_bytes=space.send_bytes,
        token=token,
    )
    async with opening as peers:
        address = joined_address(split_address(config.listen)[0], peers.server.port)
        neighbours = Neighbours(engine, peers, lending, msgspec.structs.replace(me, address=address))
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(neighbours.follow(), name="follow the members")
            closing = tasks.create_task(_close_idle(lending), name="forget what peers asked for")
            missing = MissingManifests(engine, peers.client, lambda: neighbours.members, tasks)
            lending.missing = missing.missing
            await neighbours.known.wait()
            engine.sources.use_peers(neighbours.source)
            engine.peer_statistics = neighbours.statistics
            try:
                yield neighbours
            finally:
                engine.sources.use_peers(None)
                engine.peer_statistics = None
                following.cancel()
                closing.cancel()
                missing.close()
                lending.close()


async def _close_idle(lending: Lending) -> None:
    while True:
        await asyncio.sleep(IDLE_SECONDS)
        lending.close_idle()


class Neighbours:
    """The members as this engine sees them, and what follows from them.

    Args:
        engine: keeps the chunks whose home is here.
        peers: who they are, and what they send.
        lending: what is fetched for them.
        me: this engine.

    Attributes:
        known: set when all members were asked once.
        me: this engine, with the address where it answers.
    """

    def __init__(self, engine: Engine, peers: Peers, lending: Lending, me: Member) -> None:
        self.known = asyncio.Event()
        self._engine = engine
        self._peers = peers
        self._lending = lending
        self._homes = Homes(me, ())
        self.me = me
        self.source = PeerSource(engine.sources.store, engine.publisher, peers.client, self._homes)

    def __repr__(self) -> str:
        return f"Neighbours({self._homes!r})"

    @property
    def members(self) -> Sequence[Member]:
        """All of them, this engine included."""
        return self._homes.members

    async def follow(self) -> None:
        """Moves the homes when the members change, until it is cancelled."""
        async for others in self._peers.members():
            homes = await in_thread(None, Homes, self.me, others)
            if homes.digest != self._homes.digest:
                self.move(homes)
            self._use(homes)
            self.known.set()

    async def listening(self) -> None:
        """Waits until this engine's own server answers, which starts in half a second. Others would ask the store."""
        for _ in range(_TRIES):
            if await self._peers.client.facts(self.me.address) is not None:
                return
        logger.warning("the peer server does not answer at %s: others will ask the store", self.me.address)

    def move(self, homes: Homes) -> None:
        """Chunks have other homes from now on."""
        logger.info("%d engines share their caches; %.1f %% of the chunks are kept here", *_shown(homes))
        self._engine.scheduler.freed(self._engine.policy.place(homes.places if len(homes.members) > 1 else None))
        self._use(homes)

    def _use(self, homes: Homes) -> None:
        self._homes = homes
        self.source.use(homes)

    def statistics(self) -> dict[str, Any]:
        """Counters and levels; one row for each peer in `peers`, and for each member with its weight in `homes`."""
        client = self._peers.client
        others = [member for member in self._homes.members if member.id != self._homes.me.id]
        return {
            **self._peers.statistics(),
            **msgspec.structs.asdict(self.source.count),
            "fetched_for_peers": self._lending.fetched_chunks,
            "fetched_for_peers_bytes": self._lending.fetched_bytes,
            "peer_members": len(others),
            "peer_members_down": sum(not client.is_up(member) for member in others),
            "home_share": round(self._homes.share, 6),
            "members_digest": self._homes.digest,
            "peers": client.table(),
            "homes": [
                {"member": member.id, "limit_bytes": member.limit_bytes, "here": member.id == self._homes.me.id}
                for member in self._homes.members
            ],
        }


def _shown(homes: Homes) -> tuple[int, float]:
    return len(homes.members), 100 * homes.share
