"""Asks peers for chunks, for their facts, and for files of manifests, with one attempt each.

`peers/group.py` opens the client of an engine, and `peers/source.py` asks it for chunks. Nothing here raises an error
for what a peer does: its failure is a result, after which the caller asks the store.
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
# The time for facts where a handshake of TLS comes first.
_TLS_FACTS_SECONDS = 2.0
_MOST_FACTS_BYTES = 4096
# If a peer still fetches the chunk itself after this time, the store is asked as well.
_MOST_COMING_SECONDS = 10.0
# At most this many entries of `recovered` are kept. In a job nothing reads them, and otherwise every member is asked
# within a minute anyway.
_MOST_RECOVERED = 256
# Pause until a peer is probed that refused the token or the certificate, which are not corrected within seconds.
_UNAUTHORIZED_SECONDS = 60.0


class Refusal(Enum):
    """Says why a peer sent no chunk."""

    NOT_HERE = "not here"  # the peer does not have the chunk, and would not keep it (404)
    BUSY = "busy"  # the peer is leaving, or has too many other chunks to send first (503)
    DOWN = "down"  # no connection, one that broke, or a refused token: the peer is probed before it is asked again
    WRONG = "wrong"  # an answer that the protocol does not allow (another length, a redirect, garbage)


class Asked(msgspec.Struct, frozen=True):
    """Describes a chunk that a peer is asked for.

    Attributes:
        key: key of the chunk, 16 bytes.
        dataset: digest of its manifest.
        length: length of its file in bytes, for a recoded chunk the planned one.
        exact: whether an answer of another length is wrong. Otherwise an answer may be longer, as far as a recoded
            chunk may be longer than planned (`takes`).
        fetch: whether the peer should fetch the chunk from the store if it keeps it. Otherwise it sends the chunk only
            if it has it.
        due: returns when the first reader needs the chunk, in seconds on the loop's clock.
        owner: returns the job that is charged for request and memory.
    """

    key: bytes
    dataset: str
    length: int
    exact: bool
    fetch: bool
    due: Callable[[], float]
    owner: Callable[[], str]

    def takes(self, length: int) -> bool:
        """Whether the chunk's file may have this length in bytes."""
        return length == self.length if self.exact else length <= MOST_RATIO * self.length + MOST_EXTRA_BYTES


class PeerClient:
    """Asks the peers of one engine, and keeps a `Peer` for each address. It works in its `async with`, on one loop.

    A peer that is down is probed in the background until it answers.

    Args:
        me: id of this engine.
        token: secret that peers require.
        memory: budget of memory that the engine's fetchers share.
        tls_folder: folder of certificate, key and authority (`tls`). "" means plain HTTP.

    Attributes:
        recovered: gets address and facts of each peer that is up again; at most 256 wait there, others are left out.
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
        """Asks one peer for a chunk, again and again while the peer fetches it.

        The call may be cancelled at any time. If a request was late then and the peer silent, this may take it down.

        Args:
            member: a member for which `is_up` is true.
            asked: the chunk.
            late: set by this call when the store should be asked as well. The request goes on.

        Returns:
            The chunk's file, unchecked, which the caller closes; or why the peer sent none.
        """
        peer = self._peer(member.address)
        charged = await peer.window.acquire(WaitQueue(asked.due, asked.owner))
        try:
            if not peer.is_up:  # the peer went down while this request waited
                return Refusal.DOWN
            begun = self._loop.time()
            answer = await self._ask(peer, asked, late, wait=False)
        finally:
            peer.window.release(1, charged)
        # These requests take no place in the window, which would be full of chunks that the peer is fetching.
        while answer is None:
            if self._loop.time() - begun > _MOST_COMING_SECONDS:
                late.set()
            answer = await self._ask(peer, asked, late, wait=True)
        return answer

    def is_up(self, member: PeerMember) -> bool:
        """Whether a member is asked for chunks: False while it is down, or left out for its wrong answers."""
        return self._peer(member.address).is_up

    def is_down(self, address: str) -> bool:
        """Whether the peer at an address is down and probed. `recovered` gets it when it is up again."""
        peer = self._peers.get(address)
        return peer is not None and not peer.breaker.is_up

    def reject(self, member: PeerMember) -> None:
        """Records that a member sent a file that was not the chunk; after thirty wrong answers it is left out."""
        self._count_wrong(self._peer(member.address))

    async def _ask(self, peer: Peer, asked: Asked, late: asyncio.Event, *, wait: bool) -> Fetched | Refusal | None:
        """Sends one request for a chunk; returns its file, or why there is none, or None while the peer fetches it.

        Args:
            peer: the peer.
            asked: the chunk.
            late: set when the request is late.
            wait: whether the peer should wait for its own fetch before it answers.
        """
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
        """Returns what an answer without a chunk means; counts it, and takes the peer down if its connection failed."""
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
        """Asks the engine at an address for its facts, and waits at most 1 s, with TLS 2 s.

        Args:
            address: host:port.

        Returns:
            The facts, or None if the engine does not answer in time or cannot be a peer of this one. The second is
            logged as a warning.
        """
        seconds = _TLS_FACTS_SECONDS if self._tls_folder else _FACTS_SECONDS
        status, answer = await self._read(address, PEER_PATH, _MOST_FACTS_BYTES, seconds)
        if status not in (200, Ending.WRONG):
            return None
        try:
            facts = msgspec.json.decode(answer, type=PeerFacts)
        except (ValueError, RecursionError):
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
            The content of the file, unchecked. None means that the peer does not send it.
        """
        path = f"{MANIFEST_PATH}{digest}/{name}"
        if parse_manifest_file(path) is None:
            return None
        status, content = await self._read(member.address, path, max_bytes, None)
        return content if status == 200 else None

    async def _read(self, address: str, path: str, max_bytes: int, seconds: float | None) -> tuple[int | Ending, bytes]:
        """Sends one request; returns its status, or how it ended without one, and the body of an answer 200, else b"".

        Args:
            address: host:port.
            path: path of the url.
            max_bytes: limit for the body. A longer one ends as `Ending.WRONG`.
            seconds: time for the whole request. None means no limit.
        """
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
        """Logs that a peer is down, and starts to probe it."""
        logger.info("peer %s %s: the store is asked instead, and the peer again later", peer.address, why)
        self._probes[peer.address] = self._tasks.create_task(self._probe(peer), name=f"probe {peer.address}")

    async def _probe(self, peer: Peer) -> None:
        """Asks a peer that is down for its facts, until it answers; then puts it into `recovered`."""
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
        """Logs a warning about an address, once for each text; `what` is the predicate of the sentence."""
        if (address, what) not in self._warned:
            self._warned.add((address, what))
            logger.warning("peer %s %s", address, what)

    def forget(self, address: str) -> None:
        """Drops the state of an address that is not a member any more, and ends its probe; its counts stay."""
        if (peer := self._peers.pop(address, None)) is not None:
            peer.close()
            self._past.update(msgspec.structs.asdict(peer.count))
        if (probe := self._probes.pop(address, None)) is not None:
            probe.cancel()

    def statistics(self) -> dict[str, int]:
        """Returns the counts of all peers since the start, by the names of `PeerCounts`."""
        total = self._past.copy()
        for peer in self._peers.values():
            total.update(msgspec.structs.asdict(peer.count))
        return {name: total[name] for name in PeerCounts.__struct_fields__}

    def table(self) -> list[dict[str, str | int | float | bool | None]]:
        """Returns `Peer.row` of each address that was asked and not forgotten."""
        return [peer.row() for peer in self._peers.values()]

    def _peer(self, address: str) -> Peer:
        if address not in self._peers:
            self._peers[address] = Peer(address)
        return self._peers[address]
