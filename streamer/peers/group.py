"""Makes an engine share its cache with peers: starts server and client, and follows which members there are.

`service/lifecycle.py` calls `join_peers` for an engine whose configuration names members, `peers/by_job.py` for the
engines of a job. When a peer asks for a chunk of a dataset that is not known here, `MissingManifests` takes the
manifest from that peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from streamer.base.concurrency import in_thread
from streamer.config import PeersConfig, format_bytes, read_token
from streamer.engine.datasets import find_roots
from streamer.engine.engine import Engine
from streamer.errors import ConfigError, ManifestError, StreamerError
from streamer.fetch.memory_budget import MemoryBudget
from streamer.manifest.layout import ROOT_LIMIT_BYTES, ROOT_NAME, decode_root
from streamer.manifest.transfer import install_files
from streamer.peers.client import PeerClient
from streamer.peers.homes import PLACEMENT, Homes, PeerMember
from streamer.peers.lookup import Lookup, join_address, parse_members, split_address
from streamer.peers.messages import ServerStart
from streamer.peers.protocol import PeerFacts
from streamer.peers.roster import Roster
from streamer.peers.server_process import PeerServerProcess, ServeChunk
from streamer.peers.serving import Serving
from streamer.peers.source import PeerSource
from streamer.peers.tls import check
from streamer.version import VERSION

logger = logging.getLogger(__name__)

# Tries to reach this engine's own server, of 1 s each, with TLS 2 s.
_TRIES = 10


class PeerGroup:
    """Holds the members as this engine sees them, and tells cache and client when they change.

    Members come from the configuration (`follow`), or ranks of a job name them (`move`).

    Args:
        engine: the engine whose cache is shared.
        peers: server and client of the engine.
        serving: fetches chunks for peers.
        me: this engine as a member, with the address at which it answers.

    Attributes:
        me: see Args.
        source: brings chunks for the engine from peers or the store.
    """

    def __init__(self, engine: Engine, peers: Peers, serving: Serving, me: PeerMember) -> None:
        self.me = me
        self._engine = engine
        self._peers = peers
        self._serving = serving
        self._homes = Homes(me, ())
        self.source = PeerSource(engine.sources.store, engine.publisher, peers.client, self._homes)

    def __repr__(self) -> str:
        return f"PeerGroup({self._homes!r})"

    def members(self) -> Sequence[PeerMember]:
        """Returns all members, including this engine."""
        return self._homes.members

    async def follow(self, views: AsyncIterator[tuple[PeerMember, ...]], known: asyncio.Event) -> None:
        """Follows the members, and moves the homes of chunks when they change, until it is cancelled.

        Args:
            views: yields the other members at each change (`follow_members`).
            known: set by this call when the first members are in use.
        """
        async for others in views:
            homes = await in_thread(None, Homes, self.me, others)
            if homes.digest != self._homes.digest:
                self.move(homes)
            self._use(homes)  # also if only addresses have changed
            known.set()

    async def answers(self) -> None:
        """Waits until this engine's own server answers, which usually takes half a second.

        Peers that ask it earlier would turn to the store. If it does not answer after ten tries, that is a warning.
        """
        for _ in range(_TRIES):
            if await self._peers.client.facts(self.me.address) is not None:
                return
        logger.warning("the peer server does not answer at %s: others will ask the store", self.me.address)

    def move(self, homes: Homes) -> None:
        """Uses these homes from now on. The cache keeps other chunks then, and may evict some at once."""
        count = len(homes.members)
        logger.info("%d engines share their caches; %.1f %% of the chunks are kept here", count, 100 * homes.share)
        self._engine.scheduler.apply_evictions(self._engine.policy.place(homes.places if count > 1 else None))
        self._use(homes)

    def _use(self, homes: Homes) -> None:
        self._homes = homes
        self.source.use(homes)

    def statistics(self) -> dict[str, Any]:
        """Returns counts and levels by name, for the engine's statistics.

        `peers` has a row for each address that was asked, `homes` one for each member with the limit of its cache.
        """
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
async def join_peers(
    engine: Engine, *, config: PeersConfig | None = None, token: str | None = None
) -> AsyncIterator[PeerGroup]:
    """Makes the engine ask peers before the store, and answer them, until the end of the `async with`.

    If the configuration names the members, the block begins when each of them has been asked once for its facts. The
    cache sets space aside for files that are being sent, also after the end.

    Args:
        engine: a running engine.
        config: configuration of the peers. None means the engine's own, in which peers are enabled.
        token: secret of a job whose ranks name the members (`PeerGroup.move`). None means that the configuration names
            token and members.

    Raises:
        ConfigError: the address, the members, the token or the certificates of the configuration cannot be used.
    """
    config = config or engine.config.peers
    space = engine.cache.space
    space.serves_peers = True
    engine.apply_limits(engine.cache.limits)
    me = PeerMember(engine.cache.folder.root_id, config.listen, space.whole_limit_bytes)
    manifests = MissingManifests(engine)
    serving = Serving(engine, manifests.record_question)
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
        group = PeerGroup(engine, peers, serving, msgspec.structs.replace(me, address=address))
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(serving.close_idle(), name="forget what peers asked for"),
                tasks.create_task(manifests.take(peers.client, group.members), name="take missing manifests"),
            ]
            if (views := peers.follow_members()) is not None:
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


# ---------------------------------------------------------------- server and client

# The list of members is looked up again after this time.
_ROUND_SECONDS = 10.0
# The list is looked up more often in the first minute, while an address has not answered, so that engines that start
# together find each other sooner.
_FIRST_ROUND_SECONDS = 1.0
_FIRST_SECONDS = 60.0


class Peers:
    """Holds server and client of one engine, and where its members are looked up.

    Args:
        server: answers peers.
        client: asks peers.
        me: facts of this engine.
        lookup: returns the addresses of the members. None means that the ranks of a job name them.
    """

    def __init__(self, server: PeerServerProcess, client: PeerClient, me: PeerFacts, lookup: Lookup | None) -> None:
        self.server = server
        self.client = client
        self._me = me
        self._lookup = lookup

    def __repr__(self) -> str:
        return f"Peers({self.server}, {self.client})"

    def follow_members(self) -> AsyncIterator[tuple[PeerMember, ...]] | None:
        """Returns what yields the other members at each change (see `follow_members`); None if a job names them."""
        return None if self._lookup is None else follow_members(self._lookup, self.client, self._me)

    def statistics(self) -> dict[str, int]:
        """Returns the counts of the client (`peer.PeerCounts`) and of the server (`messages.Counts`), by name."""
        return {**self.client.statistics(), **self.server.statistics()}


@asynccontextmanager
async def open_peers(
    config: PeersConfig,
    *,
    me: PeerMember,
    chunks_folder: Path,
    serve: ServeChunk,
    memory: MemoryBudget,
    send_bytes: int,
    token: str | None = None,
) -> AsyncIterator[Peers]:
    """Runs the server process and the client of an engine until the end of the `async with`.

    Args:
        config: configuration of the peers.
        me: this engine as a member.
        chunks_folder: path of the cache folder.
        serve: says where a chunk is whose file is not in the folder.
        memory: budget of memory that the engine's fetchers share.
        send_bytes: limit in bytes for the lengths of the files that are sent at once.
        token: secret of a job whose ranks name the members. None means that `config` names token and members.

    Raises:
        ConfigError: members, address, token or certificates cannot be used.
    """
    lookup = None if token is not None else await in_thread(None, parse_members, config.members)
    token = _read_configured_token(config) if token is None else token
    tls_folder = "" if config.tls_folder is None else str(config.tls_folder.absolute())
    if tls_folder:
        check(tls_folder)
    facts = PeerFacts(
        id=me.id, instance=secrets.token_hex(8), limit_bytes=me.limit_bytes, placement=PLACEMENT, version=VERSION
    )
    start = ServerStart(
        token=token,
        folder=str(chunks_folder),
        facts=facts,
        sends=config.sends,
        send_bytes=send_bytes,
        tls_folder=tls_folder,
    )
    asking = PeerClient(me.id, token, memory, tls_folder)
    async with PeerServerProcess(config.listen, start, serve) as server, asking as client:
        yield Peers(server, client, facts, lookup)


def _read_configured_token(config: PeersConfig) -> str:
    """Reads the token's file; ConfigError if none is named, or it cannot be read, or all users can read it."""
    if config.token_file is None:
        raise ConfigError(
            "[peers] members needs token_file: a file with the same secret for all peers, who can read all chunks",
            field="token_file",
        )
    token = read_token(config.token_file)
    mode = config.token_file.stat().st_mode
    if mode & stat.S_IROTH:
        raise ConfigError(
            f"the peers' token file {config.token_file} can be read by all users (mode {stat.S_IMODE(mode):04o}), who "
            "could then read every chunk: chmod o-r",
            field="token_file",
        )
    return token


async def follow_members(lookup: Lookup, client: PeerClient, me: PeerFacts) -> AsyncIterator[tuple[PeerMember, ...]]:
    """Yields the other members: first when each listed address was asked once, then at each change, without an end.

    It looks the list up every 10 s or sooner, asks addresses for their facts, and lets the client forget members that
    are gone.

    Args:
        lookup: returns the addresses. If it fails, the members stay, and a warning is logged.
        client: asks the addresses.
        me: facts of this engine.
    """
    time = asyncio.get_running_loop().time
    roster = Roster(me, client.warn)
    begun = time()
    known: tuple[PeerMember, ...] | None = None

    async def ask(address: str) -> None:
        if (facts := await client.facts(address)) is not None:
            roster.record_answer(address, facts, time())

    while True:
        try:
            roster.record_list(await lookup(), time())
        except OSError as error:  # TimeoutError is one
            client.warn("list", f"cannot be looked up: {error!r}; the members stay as they were")
        async with asyncio.TaskGroup() as asked:
            for address in roster.choose_due(time(), client.is_down):
                asked.create_task(ask(address))
        if (found := roster.members()) != known:
            for gone in {member.address for member in known or ()} - {member.address for member in found}:
                client.forget(gone)
            known = found
            yield found
        is_first = roster.has_unknown and time() - begun < _FIRST_SECONDS
        with suppress(TimeoutError):  # it waits for the next round, or until a peer is up again
            async with asyncio.timeout(_FIRST_ROUND_SECONDS if is_first else _ROUND_SECONDS):
                address, facts = await client.recovered.get()
                roster.record_answer(address, facts, time())


# A manifest that is still missing is asked for again after this time.
_AGAIN_SECONDS = 60.0
# A larger manifest is not taken, because it is in memory until it is written. In tars a sample takes 4 bytes.
_MOST_BYTES = 256 << 20
# At most this many manifests wait to be taken.
_MOST_MISSING = 256


class MissingManifests:
    """Takes manifests from peers for a service, whose configuration says how to read the objects in them.

    With the manifest of a dataset the service can be the home of its chunks, although no client has opened it here. It
    works on the engine's loop.

    Args:
        engine: engine of the service, into whose cache folder the manifests are written.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next: dict[str, float] = {}
        self._missing: asyncio.Queue[tuple[str, str]] = asyncio.Queue(_MOST_MISSING)

    def record_question(self, digest: str, member: str) -> None:
        """Records that a peer asked for a chunk of a dataset whose manifest is not here, once a minute for each.

        Args:
            digest: digest of the manifest.
            member: id of the peer.
        """
        now = self._engine.now()
        if now >= self._next.get(digest, now) and not self._missing.full():
            self._next = {known: again for known, again in self._next.items() if again > now}
            self._next[digest] = now + _AGAIN_SECONDS
            self._missing.put_nowait((digest, member))

    async def take(self, client: PeerClient, members: Callable[[], Sequence[PeerMember]]) -> None:
        """Takes recorded manifests from the peers that asked, one after the other, until it is cancelled.

        Args:
            client: asks the peers.
            members: returns the present members. Only these are asked.
        """
        while True:
            digest, asker = await self._missing.get()
            for member in members():
                if member.id == asker:
                    await self._take(client, digest, member)

    async def _take(self, client: PeerClient, digest: str, member: PeerMember) -> None:
        """Takes one manifest from a member and writes it to the cache folder; a failure is only logged."""
        where = f"manifest {digest} of peer {member.address}"

        async def file(name: str, max_bytes: int) -> bytes:
            content = await client.manifest_file(member, digest, name, max_bytes)
            if content is None:
                raise ManifestError(f"{name} was not sent")
            return content

        try:
            raw = await file(ROOT_NAME, ROOT_LIMIT_BYTES)
            root = decode_root(raw, where)
            if root.digest != digest:
                raise ManifestError(f"it is manifest {root.digest}")
            allowlist = self._engine.fetchers.allowlist
            allowlist.options(root.urls, {})
            if (total := sum(root.file_bytes.values())) > _MOST_BYTES:
                raise ManifestError(f"it has {format_bytes(total)}, more than {format_bytes(_MOST_BYTES)}")
            files = [(ROOT_NAME, raw)]
            for name, length in root.file_bytes.items():
                files.append((name, await file(name, length)))
            manifest = await in_thread(None, install_files, files, self._engine.cache.root / "manifests", where)
            allowlist.options(find_roots(manifest), {})
        except StreamerError as error:
            logger.info("%s: its chunks are not kept for peers: %s", where, error)
        else:
            logger.info("%s: its chunks are kept for peers", where)
