"""Opens server and client of one engine together, and follows the members that the configuration names."""

from __future__ import annotations

import asyncio
import secrets
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from streamer.base.threads import in_thread
from streamer.config import PeersConfig, read_token
from streamer.errors import ConfigError
from streamer.fetch.memory_budget import MemoryBudget
from streamer.peers.client import PeerClient
from streamer.peers.lookup import Lookup, parse_members
from streamer.peers.messages import Start
from streamer.peers.placement import PLACEMENT
from streamer.peers.placement.members import Member
from streamer.peers.protocol import Facts
from streamer.peers.roster import Roster
from streamer.peers.server_process import PeerServerProcess, ServeChunk
from streamer.peers.tls import check
from streamer.version import VERSION

_ROUND_SECONDS = 10.0
# Engines that start together find each other sooner.
_FIRST_ROUND_SECONDS = 1.0
_FIRST_SECONDS = 60.0


class Peers:
    """Holds server and client of one engine, and knows how its members are named.

    Args:
        server: answers peers.
        client: asks peers.
        me: facts of this engine.
        lookup: returns the addresses of the members; None if a job names them.
    """

    def __init__(self, server: PeerServerProcess, client: PeerClient, me: Facts, lookup: Lookup | None) -> None:
        self.server = server
        self.client = client
        self._me = me
        self._lookup = lookup

    def __repr__(self) -> str:
        return f"Peers({self.server}, {self.client})"

    def followed(self) -> AsyncIterator[tuple[Member, ...]] | None:
        """Follows the members (see `followed`); None if a job names them."""
        return None if self._lookup is None else followed(self._lookup, self.client, self._me)

    def statistics(self) -> dict[str, int]:
        """Returns the counters of the client (`peer.PeerCounts`) and of the server (`messages.Counts`)."""
        return {**self.client.statistics(), **self.server.statistics()}


@asynccontextmanager
async def open_peers(
    config: PeersConfig,
    *,
    me: Member,
    chunks_folder: Path,
    serve: ServeChunk,
    memory: MemoryBudget,
    send_bytes: int,
    token: str | None = None,
) -> AsyncIterator[Peers]:
    """Starts the server process and the client, until the end of the block.

    Args:
        config: configuration with `members` set.
        me: this engine as a member.
        chunks_folder: path of the cache folder.
        serve: answers for chunks whose file is not in the folder.
        memory: budget that the engine's fetchers share.
        send_bytes: limit for the lengths of the files that are sent at once.
        token: secret of a job that names the members; None if the configuration has both.

    Raises:
        ConfigError: members, address, token or certificates cannot be used.
    """
    lookup = None if token is not None else await in_thread(None, parse_members, config.members)
    token = _configured_token(config) if token is None else token
    tls_folder = "" if config.tls_folder is None else str(config.tls_folder.absolute())
    if tls_folder:
        check(tls_folder)
    facts = Facts(me.id, secrets.token_hex(8), me.limit_bytes, PLACEMENT, VERSION)
    start = Start(token, str(chunks_folder), facts, config.sends, send_bytes, tls_folder)
    asking = PeerClient(me.id, token, memory, tls_folder)
    async with PeerServerProcess(config.listen, start, serve) as server, asking as client:
        yield Peers(server, client, facts, lookup)


def _configured_token(config: PeersConfig) -> str:
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


async def followed(lookup: Lookup, client: PeerClient, me: Facts) -> AsyncIterator[tuple[Member, ...]]:
    """Yields the other members: first after one round of asking all addresses, then at each change."""
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
