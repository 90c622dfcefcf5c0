"""Runs an engine in a group of peers: its homes follow the members, its counters join the engine's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from streamer.base.threads import in_thread
from streamer.config import PeersConfig
from streamer.engine.engine import Engine
from streamer.peers.fetching.manifests import MissingManifests
from streamer.peers.fetching.sources import PeerSource
from streamer.peers.lookup import join_address, split_address
from streamer.peers.opened import Peers, open_peers
from streamer.peers.placement.homes import Homes
from streamer.peers.placement.members import Member
from streamer.peers.serving import Serving

logger = logging.getLogger(__name__)

# Of one second each, of two with TLS.
_TRIES = 10


class Group:
    """Holds the members as this engine sees them, and applies what follows from them.

    `follow` takes them from the configuration; ranks of a job name them by `move`.

    Args:
        engine: keeps the chunks whose home is here.
        peers: asks and answers the other members.
        serving: fetches for them.
        me: this engine, with the address at which it answers.
    """

    def __init__(self, engine: Engine, peers: Peers, serving: Serving, me: Member) -> None:
        self.me = me
        self._engine = engine
        self._peers = peers
        self._serving = serving
        self._homes = Homes(me, ())
        self.source = PeerSource(engine.sources.store, engine.publisher, peers.client, self._homes)

    def __repr__(self) -> str:
        return f"Group({self._homes!r})"

    def members(self) -> Sequence[Member]:
        """Returns all members, including this engine."""
        return self._homes.members

    async def follow(self, views: AsyncIterator[tuple[Member, ...]], known: asyncio.Event) -> None:
        """Moves the homes when the members change, until it is cancelled.

        Args:
            views: yields the other members.
            known: is set when all of them were asked once.
        """
        async for others in views:
            homes = await in_thread(None, Homes, self.me, others)
            if homes.digest != self._homes.digest:
                self.move(homes)
            self._use(homes)  # perhaps with other addresses
            known.set()

    async def answers(self) -> None:
        """Waits for this engine's own server, which starts in half a second; before that others would ask the store."""
        for _ in range(_TRIES):
            if await self._peers.client.facts(self.me.address) is not None:
                return
        logger.warning("the peer server does not answer at %s: others will ask the store", self.me.address)

    def move(self, homes: Homes) -> None:
        """Gives chunks other homes from now on."""
        count = len(homes.members)
        logger.info("%d engines share their caches; %.1f %% of the chunks are kept here", count, 100 * homes.share)
        self._engine.scheduler.freed(self._engine.policy.place(homes.places if count > 1 else None))
        self._use(homes)

    def _use(self, homes: Homes) -> None:
        self._homes = homes
        self.source.use(homes)

    def statistics(self) -> dict[str, Any]:
        """Returns counters and levels; `peers` has a row for each peer, `homes` one for each member with its weight."""
        client = self._peers.client
        others = [member for member in self.members() if member.id != self.me.id]
        return {
            **self._peers.statistics(),
            **msgspec.structs.asdict(self.source.count),
            "fetched_for_peers": self._serving.fetched_chunks,
            "fetched_for_peers_bytes": self._serving.fetched_bytes,
            "peer_members": len(others),
            "peer_members_down": sum(not client.is_up(member) for member in others),
            "home_share": round(self._homes.share, 6),
            "members_digest": self._homes.digest,
            "peers": client.table(),
            "homes": [
                {"member": member.id, "limit_bytes": member.limit_bytes, "here": member.id == self.me.id}
                for member in self.members()
            ],
        }


@contextlib.asynccontextmanager
async def joined(
    engine: Engine, *, config: PeersConfig | None = None, token: str | None = None
) -> AsyncIterator[Group]:
    """Asks peers before the store, and answers them, until the end of the block. Starts with those that answer now.

    Args:
        engine: engine that runs.
        config: configuration of the peers; None for the engine's own, with peers enabled.
        token: secret of a job that names the members (`Group.move`); None if the configuration has both.

    Raises:
        ConfigError: `listen`, `members` or the token cannot be used.
    """
    config = config or engine.config.peers
    space = engine.cache.space
    space.serves_peers = True
    engine.limit_changed(engine.cache.limits)
    me = Member(engine.cache.folder.root_id, config.listen, space.whole_limit_bytes)
    manifests = MissingManifests(engine)
    serving = Serving(engine, manifests.missing)
    opening = open_peers(
        config,
        me=me,
        chunks_folder=engine.cache.folder.path,
        serve=serving.serve,
        memory=engine.fetchers.memory,
        send_bytes=space.send_bytes,
        token=token,
    )
    async with opening as peers:
        address = join_address(split_address(config.listen)[0], peers.server.port)
        group = Group(engine, peers, serving, msgspec.structs.replace(me, address=address))
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(serving.close_idle(), name="forget what peers asked for"),
                tasks.create_task(manifests.take(peers.client, group.members), name="take missing manifests"),
            ]
            if (views := peers.followed()) is not None:
                known = asyncio.Event()
                running.append(tasks.create_task(group.follow(views, known), name="follow the members"))
                await known.wait()
            engine.sources.use_peers(group.source.bring)
            engine.peer_statistics = group.statistics
            try:
                yield group
            finally:
                engine.sources.use_peers(None)
                engine.peer_statistics = None
                for task in running:
                    task.cancel()
                serving.close()
