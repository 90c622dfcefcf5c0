"""What the engine asks of peers, and what they ask of it.

The engine calls `Peers.client` for chunks and follows `Peers.members()`; the peer server calls the engine's `Lender`.
Nothing here raises for what a peer does: a peer that fails is an answer, and the store is asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

import msgspec

from streamer.placement.members import Member


class Refusal(Enum):
    """Why a peer sent no chunk."""

    NOT_HERE = "not here"  # it does not have it, and would not keep it (404, 409)
    BUSY = "busy"  # it is leaving, or has more to send than it can before the chunk is due (503)
    DOWN = "down"  # no connection, cut off, or silent: the breaker counts it
    WRONG = "wrong"  # an answer that the protocol does not allow (another length, 200 for a range, 401, garbage)


class Asked(msgspec.Struct, frozen=True):
    """One chunk that is asked for.

    Attributes:
        key: 16 bytes.
        dataset: digest of its manifest.
        length: of its chunk file, in bytes; of a recoded chunk as planned, then the answer has another one.
        exact: whether an answer of another length is wrong; otherwise it may have up to four times `length`.
        fetch: True: the peer shall fetch it from the store if it keeps it; False: only what it has.
        due: when its first reader needs it, on the loop's clock; read when the request leaves.
        owner: the job that is charged for the memory.
    """

    key: bytes
    dataset: str
    length: int
    exact: bool
    fetch: bool
    due: Callable[[], float]
    owner: Callable[[], str]


class Received(Protocol):
    """A chunk file in a buffer of the memory budget; close it when it is written.

    Attributes:
        parts: views whose concatenation is the file. They end with `close`.
    """

    parts: list[memoryview]

    def close(self) -> None:
        """Gives the memory back; idempotent."""
        ...


class PeerClient(Protocol):
    """Asks peers for chunks, one attempt each. Owns connections, the breaker and the statistics of each peer."""

    async def fetch_chunk(self, member: Member, asked: Asked, on_late: Callable[[], None]) -> Received | Refusal:
        """Asks one peer.

        Safe to cancel at any time: a request that was late and is cancelled without a byte counts as a lost hedge.

        Args:
            member: one that `is_up`.
            asked: what.
            on_late: called at most once, when the store is to be asked as well: no byte for `late` seconds (8.2 of the
                design; a chunk that the peer is fetching has the patience of `coming_seconds`). The request goes on.
        """
        ...

    def is_up(self, member: Member) -> bool:
        """False: it has failed and its pause has not ended; it is not asked with a reader's chunk."""
        ...

    def rejected(self, member: Member) -> None:
        """What the peer sent was not the chunk: its key, lengths or checksums are wrong. Thirty of them leave it out."""
        ...

    def statistics(self) -> dict[str, int]:
        """Counters since the start: peer_requests, peer_received_bytes, peer_hedges, peer_failures, peer_rejected..."""
        ...

    def table(self) -> list[dict[str, str | int | float | bool | None]]:
        """One row for each member: member, address, state, received_bytes, first_byte_p95_seconds, hedges..."""
        ...


class Loan(Protocol):
    """The engine's answer to a peer's request; the chunk cannot be evicted before `close`."""

    there: bool
    coming: bool

    def close(self) -> None:
        """The file is open, or the request has ended; idempotent."""
        ...


class Lender(Protocol):
    """The engine's side of the peer server: asked only for chunks whose file is not there."""

    async def lend(self, key: bytes, dataset: str, *, fetch: bool, wait: bool, due_seconds: float) -> Loan:
        """Answers for one chunk: there, coming (only without `wait`), or neither: the peer is to fetch it itself.

        Args:
            key: 16 bytes.
            dataset: digest of the manifest that the peer knows it by.
            fetch: True: fetch it from the store, if it is kept here.
            wait: True: answer when a fetch of it has ended.
            due_seconds: when the peer's reader needs it.
        """
        ...

    def describe(self) -> dict[str, object]:
        """For GET /v1/peer: {digest: {"held_bytes": ...}} of the datasets that are open here."""
        ...


class Peers(Protocol):
    """Server, client and membership of one engine."""

    client: PeerClient

    def members(self) -> AsyncIterator[tuple[Member, ...]]:
        """The other members, at first after one round of asking all of them, then at each change."""
        ...

    def statistics(self) -> dict[str, int]:
        """Counters of the client and of the server: served_requests, served_bytes, served_refused, sends (a level)..."""
        ...


class OpenPeers(Protocol):
    """`streamer.peers.opened.open_peers`."""

    def __call__(
        self, config: object, *, me: Member, chunks_folder: object, lender: Lender, memory: object
    ) -> AbstractAsyncContextManager[Peers]:
        """Starts the server process, listens, and follows the membership until the end of the block."""
        ...
