"""Asks peers for chunks, one attempt each.

Nothing here raises for what a peer does: a peer that fails is an answer, and the store is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Self

import msgspec

from streamer.fetch.fair_gate import WaitQueue
from streamer.fetch.fetcher import Fetched
from streamer.fetch.memory_budget import MemoryBudget
from streamer.fetch.presence_clock import PresenceClock
from streamer.manifest.blocks import MOST_EXTRA_BYTES, MOST_RATIO
from streamer.peers.homes import PLACEMENT, PeerMember
from streamer.peers.peer import PAUSE_SECONDS, Peer, PeerCounts
from streamer.peers.protocol import (
    BEARER,
    DUE_HEADER,
    MANIFEST_PATH,
    MEMBER_HEADER,
    PEER_PATH,
    PROTOCOL,
    WAIT_SECONDS,
    PeerFacts,
    chunk_path,
    parse_manifest_file,
)
from streamer.peers.transfer import Ending, PeerTransfer, WrongError
from streamer.peers.watch import Watch
from streamer.store.curl.multi import Multi

logger = logging.getLogger(__name__)

_IDLE_CONNECTIONS = 256
_FACTS_SECONDS = 1.0
# A handshake comes before it.
_TLS_FACTS_SECONDS = 2.0
_MOST_FACTS_BYTES = 4096
# The store is asked as well after this time of asking a peer that is fetching the chunk itself.
_MOST_COMING_SECONDS = 10.0
# Nothing may read them; a member is asked within a minute anyway.
_MOST_RECOVERED = 256
# A token is not corrected within seconds.
_UNAUTHORIZED_SECONDS = 60.0


class Refusal(Enum):
    """Says why a peer sent no chunk."""

    NOT_HERE = "not here"  # it does not have it, and would not keep it (404)
    BUSY = "busy"  # it is leaving, or has more to send before (503)
    DOWN = "down"  # no connection, cut off, or silent: the breaker counts it
    WRONG = "wrong"  # an answer that the protocol does not allow (another length, a redirect, garbage)


class Asked(msgspec.Struct, frozen=True):
    """Describes a chunk that a peer is asked for.

    Attributes:
        key: key of the chunk, 16 bytes.
        dataset: digest of its manifest.
        length: length of its file in bytes; the planned one for a recoded chunk.
        exact: whether an answer of another length is wrong; otherwise up to four times `length` is taken.
        fetch: whether the peer fetches the chunk from the store if it keeps it; otherwise it sends what it has.
        due: returns when the first reader needs it, on the loop's clock; read when the request is sent.
        owner: returns the job that is charged for the memory.
    """

    key: bytes
    dataset: str
    length: int
    exact: bool
    fetch: bool
    due: Callable[[], float]
    owner: Callable[[], str]

    def takes(self, length: int) -> bool:
        """Whether the chunk file may have this length."""
        return length == self.length if self.exact else length <= MOST_RATIO * self.length + MOST_EXTRA_BYTES


class PeerClient:
    """Asks the peers of one engine, by address. In an `async with` of the engine, on its loop.

    Args:
        me: id of this engine.
        token: secret that peers require.
        memory: budget that the engine's fetchers share.
        tls_folder: folder of certificate, key and authority (`tls`); "" for plain HTTP.

    Attributes:
        recovered: receives address and facts of each peer that is up again.
    """

    def __init__(self, me: str, token: str, memory: MemoryBudget, tls_folder: str = "") -> None:
        self._scheme = "https" if tls_folder else "http"
        self._tls_folder = tls_folder
        self._lines = (f"Authorization: {BEARER}{token}", f"{MEMBER_HEADER}: {me}")
        self._memory = memory
        self._peers: dict[str, Peer] = {}
        self._past: Counter[str] = Counter()
        self._warned: set[tuple[str, str]] = set()
        self.recovered: asyncio.Queue[tuple[str, PeerFacts]] = asyncio.Queue(_MOST_RECOVERED)

    def __repr__(self) -> str:
        return f"PeerClient({list(self._peers.values())})"

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._clock = PresenceClock()
        self._multi = Multi(_IDLE_CONNECTIONS)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._probes: dict[str, asyncio.Task[None]] = {}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for address in list(self._peers):
            self.forget(address)
        await self._tasks.__aexit__(None, None, None)
        await self._multi.close()

    # ------------------------------------------------------------ chunks

    async def fetch_chunk(self, member: PeerMember, asked: Asked, late: asyncio.Event) -> Fetched | Refusal:
        """Asks one peer for a chunk.

        The call may be cancelled at any time: a late request that is cancelled without a byte counts as a lost hedge.

        Args:
            member: a member that `is_up`.
            asked: the chunk.
            late: is set when the store should be asked as well; the request continues.
        """
        peer = self._peer(member.address)
        charged = await peer.window.acquire(WaitQueue(asked.due, asked.owner))
        try:
            if not peer.is_up:  # it was when this began to wait
                return Refusal.DOWN
            begun = self._loop.time()
            answer = await self._ask(peer, asked, late, wait=False)
        finally:
            peer.window.release(1, charged)
        # This is not in the window, which would be full of chunks that the peer waits for itself.
        while answer is None:
            if self._loop.time() - begun > _MOST_COMING_SECONDS:
                late.set()
            answer = await self._ask(peer, asked, late, wait=True)
        return answer

    def is_up(self, member: PeerMember) -> bool:
        """Whether a member is asked for chunks: False from a failure until it answers a probe."""
        return self._peer(member.address).is_up

    def is_probed(self, address: str) -> bool:
        """Whether a member is down and probed; `recovered` receives it when it is up again."""
        peer = self._peers.get(address)
        return peer is not None and not peer.breaker.is_up

    def reject(self, member: PeerMember) -> None:
        """Records a file with wrong key, lengths or checksums; a peer that sent thirty wrong answers is left out."""
        self._count_wrong(self._peer(member.address))

    async def _ask(self, peer: Peer, asked: Asked, late: asyncio.Event, *, wait: bool) -> Fetched | Refusal | None:
        """Sends one request; returns None while the peer fetches the chunk."""
        due = max(0.0, asked.due() - self._loop.time())
        path = chunk_path(asked.key, asked.dataset, wait=wait, held=not asked.fetch)
        lines = (*self._lines, f"{DUE_HEADER}: {int(1000 * min(due, 1e6))}")
        peer.count.peer_requests += 1
        peer.budget.earn(0)
        fetched: Fetched | None = None

        async def make_room(length: int) -> memoryview:
            nonlocal fetched
            if not asked.takes(length):
                raise WrongError
            fetched = Fetched(*await self._memory.reserve(WaitQueue(asked.due, asked.owner), length))
            return fetched.parts[0]

        transfer = peer.idle.pop() if peer.idle else PeerTransfer(self._tls_folder)
        watch = Watch(self._clock, peer, transfer, late, due_seconds=due, grace_seconds=WAIT_SECONDS * wait)
        url = f"{self._scheme}://{peer.address}{path}"
        try:
            status = await transfer.get(self._multi, url, lines, make_room=make_room, on_bytes=watch.record_bytes)
        except asyncio.CancelledError:
            if fetched is not None:
                fetched.close()
            if watch.end(cancelled=True):
                self._take_down(peer, "is silent")
            raise
        finally:
            peer.count.peer_received_bytes += transfer.received
            peer.idle.append(transfer)
        watch.end(cancelled=False)
        if fetched is not None:
            if status == 200:
                return fetched
            fetched.close()
        self._warn_of_refusal(peer.address, status, transfer.why)
        return None if status == 202 else self._refusal(peer, watch.asked_at, status)

    def _refusal(self, peer: Peer, asked_at: float, status: int | Ending) -> Refusal:
        if status == 404:
            return Refusal.NOT_HERE
        if status == 503:
            peer.count.peer_refused += 1
            return Refusal.BUSY
        if status in (401, Ending.CUT_OFF, Ending.UNTRUSTED):
            peer.count.peer_failures += 1
            pause = PAUSE_SECONDS if status is Ending.CUT_OFF else _UNAUTHORIZED_SECONDS
            if peer.breaker.record_failure(asked_at, self._loop.time(), pause_seconds=pause):
                self._take_down(peer, "has cut a connection off")
            return Refusal.DOWN
        self._count_wrong(peer)
        return Refusal.WRONG

    def _count_wrong(self, peer: Peer) -> None:
        if peer.count_wrong():
            self.warn(peer.address, f"has sent {peer.count.peer_wrong} wrong answers; it is left out until it restarts")

    # ------------------------------------------------------------ facts and manifests

    async def facts(self, address: str) -> PeerFacts | None:
        """Asks a peer who it is.

        Args:
            address: host:port.

        Returns:
            None if it does not answer in time, or cannot be a peer of this engine.
        """
        seconds = _TLS_FACTS_SECONDS if self._tls_folder else _FACTS_SECONDS
        status, answer = await self._read(address, PEER_PATH, _MOST_FACTS_BYTES, seconds)
        if status not in (200, Ending.WRONG):
            return None
        try:
            facts = msgspec.json.decode(answer, type=PeerFacts)
        except msgspec.MsgspecError:
            self.warn(address, "is not a peer: another program answers there")
            return None
        if (facts.protocol, facts.placement) != (PROTOCOL, PLACEMENT):
            self.warn(address, f"runs streamer {facts.version}, whose peers are those of its own version: update one")
            return None
        if (peer := self._peers.get(address)) is not None:
            peer.identify(facts)
        return facts

    async def manifest_file(self, member: PeerMember, digest: str, name: str, max_bytes: int) -> bytes | None:
        """Asks a peer for a file of a manifest.

        Args:
            member: the peer.
            digest: digest of the manifest.
            name: name of the file in the manifest's folder.
            max_bytes: limit; a longer file is refused.

        Returns:
            None if the peer does not send it.
        """
        path = f"{MANIFEST_PATH}{digest}/{name}"
        if parse_manifest_file(path) is None:
            return None
        status, content = await self._read(member.address, path, max_bytes, None)
        return content if status == 200 else None

    async def _read(self, address: str, path: str, max_bytes: int, seconds: float | None) -> tuple[int | Ending, bytes]:
        """Returns the status, and the body of an answer 200."""
        content = bytearray()
        transfer = PeerTransfer(self._tls_folder)

        async def make_room(length: int) -> memoryview:
            nonlocal content
            if length > max_bytes:
                raise WrongError
            content = bytearray(length)
            return memoryview(content)

        try:
            async with asyncio.timeout(seconds):
                status = await transfer.get(self._multi, f"{self._scheme}://{address}{path}", self._lines, make_room)
        except TimeoutError:
            status = Ending.CUT_OFF
        finally:
            transfer.close()
        self._warn_of_refusal(address, status, transfer.why)
        return status, bytes(content) if status == 200 else b""

    # ------------------------------------------------------------ all of them

    def _take_down(self, peer: Peer, why: str) -> None:
        logger.info("peer %s %s: the store is asked instead, and the peer again later", peer.address, why)
        self._probes[peer.address] = self._tasks.create_task(self._probe(peer), name=f"probe {peer.address}")

    async def _probe(self, peer: Peer) -> None:
        """Asks a peer that is down who it is, until it answers; no reader waits for that."""
        facts = None
        while facts is None:
            await asyncio.sleep(peer.breaker.pause_seconds)
            facts = await self.facts(peer.address)
            peer.breaker.record_probe(facts is not None, self._loop.time())
        logger.info("peer %s is up again", peer.address)
        if not self.recovered.full():
            self.recovered.put_nowait((peer.address, facts))

    def _warn_of_refusal(self, address: str, status: int | Ending, why: str) -> None:
        if status == 401:
            self.warn(address, "does not take the token of this engine; all of them need the same one")
        elif status is Ending.UNTRUSTED:
            self.warn(address, f"and this engine do not take each other's certificates: {why}")

    def warn(self, address: str, what: str) -> None:
        """Logs a warning once."""
        if (address, what) not in self._warned:
            self._warned.add((address, what))
            logger.warning("peer %s %s", address, what)

    def forget(self, address: str) -> None:
        """Drops the state of an address that is not a member any more; its counts stay."""
        if (peer := self._peers.pop(address, None)) is not None:
            peer.close()
            self._past.update(msgspec.structs.asdict(peer.count))
        if (probe := self._probes.pop(address, None)) is not None:
            probe.cancel()

    def statistics(self) -> dict[str, int]:
        """Returns the counters since the start, by the names of `PeerCounts`."""
        total = self._past.copy()
        for peer in self._peers.values():
            total.update(msgspec.structs.asdict(peer.count))
        return {name: total[name] for name in PeerCounts.__struct_fields__}

    def table(self) -> list[dict[str, str | int | float | bool | None]]:
        """Returns one row for each address that was asked."""
        return [peer.row() for peer in self._peers.values()]

    def _peer(self, address: str) -> Peer:
        if address not in self._peers:
            self._peers[address] = Peer(address)
        return self._peers[address]
