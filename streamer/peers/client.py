"""Asks peers: one attempt each, late after a quarter of a second, down after failures."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from streamer.fetch.buffer_pool import ChunkBuffer
from streamer.fetch.fair_gate import WaitQueue
from streamer.fetch.memory_budget import MemoryBudget
from streamer.fetch.presence_clock import PresenceClock
from streamer.peers.base import Asked, Refusal
from streamer.peers.breaker import PAUSE_SECONDS
from streamer.peers.peer import Peer, PeerCounts
from streamer.peers.protocol import (
    BEARER,
    DUE_HEADER,
    MANIFEST_PATH,
    MEMBER_HEADER,
    PEER_PATH,
    PROTOCOL,
    Facts,
    chunk_path,
    parse_manifest_file,
)
from streamer.peers.transfer import Ending, Transfer, WrongError
from streamer.peers.watch import Watch
from streamer.placement import PLACEMENT
from streamer.placement.members import Member
from streamer.store.curl.multi import Multi

logger = logging.getLogger(__name__)

_IDLE_CONNECTIONS = 256
_FACTS_SECONDS = 1.0
# With a handshake before it.
_TLS_FACTS_SECONDS = 2.0
# A peer that is asked to wait answers after half a second (server.py); after this time of waiting the store is asked
# as well.
_WAIT_SECONDS = 0.5
_MOST_COMING_SECONDS = 10.0
# A token is not corrected within seconds.
_UNAUTHORIZED_SECONDS = 60.0
# The length of a recoded chunk is a guess (recode/messages.py).
_MOST_RATIO = 4
_MOST_EXTRA_BYTES = 64 << 20


class Received:
    """A chunk file in a buffer of the memory budget; close it when it is written.

    Args:
        memory: where the buffer is from.
        asked: what it is for.

    Attributes:
        content: the file. It ends with `close`.
    """

    def __init__(self, memory: MemoryBudget, asked: Asked) -> None:
        self._memory = memory
        self._asked = asked
        self._charged = ""
        self._buffer: ChunkBuffer | None = None
        self.content = memoryview(b"")

    async def make_room(self, length: int) -> memoryview:
        """Waits for memory for a file of that length.

        Raises:
            WrongError: the chunk has another length.
        """
        asked = self._asked
        most = asked.length if asked.exact else _MOST_RATIO * asked.length + _MOST_EXTRA_BYTES
        if length > most or (asked.exact and length != most):
            raise WrongError
        self._charged = await self._memory.gate.acquire(WaitQueue(asked.due, asked.owner), length)
        self._buffer = ChunkBuffer(self._memory.buffers, length)
        self.content = self._buffer.view()
        return self.content

    def close(self) -> None:
        """Gives the memory back; idempotent."""
        buffer, self._buffer = self._buffer, None
        self.content = memoryview(b"")
        if buffer is not None:
            buffer.clear()
            self._memory.gate.release(buffer.length, self._charged)


class PeerClient:
    """The peers of one engine, by address. In an `async with` of it, on its loop. See `base.PeerClient`.

    Args:
        me: id of this engine.
        token: that peers want to see.
        memory: of the engine's fetchers.
        tls_folder: with certificate, key and authority (`tls`); "": plain HTTP.

    Attributes:
        on_facts: called with the address and the facts of a peer that is up again.
    """

    def __init__(self, me: str, token: str, memory: MemoryBudget, tls_folder: str = "") -> None:
        self._scheme = "https" if tls_folder else "http"
        self._tls_folder = tls_folder
        self._lines = (f"Authorization: {BEARER}{token}", f"{MEMBER_HEADER}: {me}")
        self._memory = memory
        self._peers: dict[str, Peer] = {}
        self._past: Counter[str] = Counter()
        self._warned: set[tuple[str, str]] = set()
        self.on_facts: Callable[[str, Facts], None] = lambda address, facts: None

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

    async def fetch_chunk(self, member: Member, asked: Asked, on_late: Callable[[], None]) -> Received | Refusal:
        """See `base.PeerClient`."""
        peer = self._peer(member.address)
        on_late = _once(on_late)
        charged = await peer.window.acquire(WaitQueue(asked.due, asked.owner))
        try:
            if not self.is_up(member):  # it was when this began to wait
                return Refusal.DOWN
            begun = self._loop.time()
            answer = await self._ask(peer, asked, on_late, wait=False)
        finally:
            peer.window.release(1, charged)
        # Not in the window: it would be full of chunks that the peer waits for itself.
        while answer is None:
            if self._loop.time() - begun > _MOST_COMING_SECONDS:
                on_late()
            answer = await self._ask(peer, asked, on_late, wait=True)
        return answer

    def is_up(self, member: Member) -> bool:
        """See `base.PeerClient`."""
        peer = self._peer(member.address)
        return peer.breaker.is_up and not peer.is_left_out

    def is_probed(self, address: str) -> bool:
        """Whether it is down; `on_facts` says when it is up again."""
        peer = self._peers.get(address)
        return peer is not None and not peer.breaker.is_up

    def rejected(self, member: Member) -> None:
        """See `base.PeerClient`."""
        self._wrong(self._peer(member.address))

    async def _ask(
        self, peer: Peer, asked: Asked, on_late: Callable[[], None], *, wait: bool
    ) -> Received | Refusal | None:
        """One request; None: the chunk is on its way to the peer."""
        due = max(0.0, asked.due() - self._loop.time())
        url = f"{self._scheme}://{peer.address}{chunk_path(asked.key, asked.dataset, wait=wait, held=not asked.fetch)}"
        lines = (*self._lines, f"{DUE_HEADER}: {int(1000 * min(due, 1e6))}")
        peer.count.peer_requests += 1
        peer.budget.earned(0)
        received = Received(self._memory, asked)
        transfer = peer.idle.pop() if peer.idle else Transfer(self._tls_folder)
        watch = Watch(self._clock, peer, transfer, on_late, due_seconds=due, waits=_WAIT_SECONDS * wait)
        transfer.on_bytes = watch.received
        try:
            status = await transfer.get(self._multi, url, lines, received.make_room)
        except asyncio.CancelledError:
            received.close()
            if watch.end(cancelled=True):
                self._goes_down(peer, "is silent")
            raise
        finally:
            peer.count.peer_received_bytes += transfer.received
            peer.idle.append(transfer)
        watch.end(cancelled=False)
        if status == 200 and received.content:
            return received
        received.close()
        self._warn_refused(peer.address, status, transfer)
        return None if status == 202 else self._refusal(peer, watch.asked_at, status)

    def _warn_refused(self, address: str, status: int | Ending, transfer: Transfer) -> None:
        if status == 401:
            self.warn(address, "does not take the token of this engine; all of them need the same one")
        elif status is Ending.UNTRUSTED:
            self.warn(address, f"and this engine do not take each other's certificates: {transfer.why}")

    def _refusal(self, peer: Peer, asked_at: float, status: int | Ending) -> Refusal:
        now = self._loop.time()
        if status == 404:
            return Refusal.NOT_HERE
        if status == 503:
            peer.count.peer_refused += 1
            return Refusal.BUSY
        if status in (401, Ending.CUT_OFF, Ending.UNTRUSTED):
            peer.count.peer_failures += 1
            pause = PAUSE_SECONDS if status is Ending.CUT_OFF else _UNAUTHORIZED_SECONDS
            if peer.breaker.failed(asked_at, now, pause_seconds=pause):
                self._goes_down(peer, "has cut a connection off")
            return Refusal.DOWN
        self._wrong(peer)
        return Refusal.WRONG

    def _wrong(self, peer: Peer) -> None:
        if peer.wrong():
            self.warn(peer.address, f"has sent {peer.count.peer_wrong} wrong answers; it is left out until it restarts")

    # ------------------------------------------------------------ facts

    async def facts(self, address: str) -> Facts | None:
        """Asks a peer who it is; None: it does not say so in time, or is no peer of this engine.

        Args:
            address: host:port.
        """
        seconds = _TLS_FACTS_SECONDS if self._tls_folder else _FACTS_SECONDS
        transfer = Transfer(self._tls_folder)
        try:
            status = await transfer.get_small(
                self._multi, f"{self._scheme}://{address}{PEER_PATH}", self._lines, seconds=seconds
            )
        finally:
            transfer.close()
        if status != 200:
            self._warn_refused(address, status, transfer)
            return None
        try:
            facts = msgspec.json.decode(transfer.answer, type=Facts)
        except msgspec.MsgspecError:
            self.warn(address, "is no peer: what answers there is another program")
            return None
        if (facts.protocol, facts.placement) != (PROTOCOL, PLACEMENT):
            self.warn(address, f"runs streamer {facts.version}, whose peers are those of its own version: update one")
            return None
        if (peer := self._peers.get(address)) is not None:
            peer.identified(facts)
        return facts

    # ------------------------------------------------------------ manifests

    async def manifest_file(self, member: Member, digest: str, name: str, most_bytes: int) -> bytes | None:
        """See `base.PeerClient`."""
        content, path = bytearray(), f"{MANIFEST_PATH}{digest}/{name}"
        if parse_manifest_file(path) is None:
            return None

        async def make_room(length: int) -> memoryview:
            nonlocal content
            if length > most_bytes:
                raise WrongError
            content = bytearray(length)
            return memoryview(content)

        transfer = Transfer(self._tls_folder)
        try:
            status = await transfer.get(self._multi, f"{self._scheme}://{member.address}{path}", self._lines, make_room)
        finally:
            transfer.close()
        return bytes(content) if status == 200 else None

    def _goes_down(self, peer: Peer, why: str) -> None:
        logger.info("peer %s %s: the store is asked instead, and the peer again later", peer.address, why)
        self._probes[peer.address] = self._tasks.create_task(self._probe(peer), name=f"probe {peer.address}")

    async def _probe(self, peer: Peer) -> None:
        """Asks a peer that is down who it is, until it says so. Readers do not wait for that."""
        facts = None
        while facts is None:
            await asyncio.sleep(peer.breaker.pause_seconds)
            facts = await self.facts(peer.address)
            peer.breaker.probed(facts is not None, self._loop.time())
        logger.info("peer %s is up again", peer.address)
        self.on_facts(peer.address, facts)

    def warn(self, address: str, what: str) -> None:
        """Logs a warning once."""
        if (address, what) not in self._warned:
            self._warned.add((address, what))
            logger.warning("peer %s %s", address, what)

    # ------------------------------------------------------------ all of them

    def forget(self, address: str) -> None:
        """It is no member any more."""
        if (peer := self._peers.pop(address, None)) is not None:
            peer.close()
            self._past.update(msgspec.structs.asdict(peer.count))
        if (probe := self._probes.pop(address, None)) is not None:
            probe.cancel()

    def statistics(self) -> dict[str, int]:
        """See `base.PeerClient`."""
        total = self._past.copy()
        for peer in self._peers.values():
            total.update(msgspec.structs.asdict(peer.count))
        return {name: total[name] for name in PeerCounts.__struct_fields__}

    def table(self) -> list[dict[str, str | int | float | bool | None]]:
        """See `base.PeerClient`."""
        return [_row(peer) for peer in self._peers.values()]

    def _peer(self, address: str) -> Peer:
        if address not in self._peers:
            self._peers[address] = Peer(address)
        return self._peers[address]


def _row(peer: Peer) -> dict[str, str | int | float | bool | None]:
    seen = peer.first_byte.quantiles
    return {
        "address": peer.address,
        "state": peer.state,
        "first_byte_p95_seconds": None if seen is None else seen.p95,
        **msgspec.structs.asdict(peer.count),
    }


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """Calls at most once."""
    calls = iter([call])
    return lambda: next(calls, _nothing)()


def _nothing() -> None:
    """Instead of a second call."""
