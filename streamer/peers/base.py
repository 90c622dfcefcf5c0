"""What the engine asks of peers, and what they ask of it.

The engine calls `Peers.client` for chunks and follows `Peers.members()`; the peer server calls the engine's `Lender`.
Nothing here raises for what a peer does: a peer that fails is an answer, and the store is asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Protocol

import msgspec

from streamer.peers.protocol import Facts
from streamer.placement.members import Member


class Refusal(Enum):
    """Why a peer sent no chunk."""

    NOT_HERE = "not here"  # it does not have it, and would not keep it (404)
    BUSY = "busy"  # it is leaving, or has more to send before (503)
    DOWN = "down"  # no connection, cut off, or silent: the breaker counts it
    WRONG = "wrong"  # an answer that the protocol does not allow (another length, a redirect, garbage)


class Asked(msgspec.Struct, frozen=True):
    """One chunk that is asked for.

    Attributes:
        key: 16 bytes.
        dataset: digest of its manifest.
        length: of its chunk file, in bytes; of a recoded chunk as planned.
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
        content: the file. It ends with `close`.
    """

    content: memoryview

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
            on_late: called at most once, when the store is to be asked as well. The request goes on.
        """
        ...

    async def manifest_file(self, member: Member, digest: str, name: str, most_bytes: int) -> bytes | None:
        """A file of a manifest that a peer has; None: it does not send it.

        Args:
            member: the peer.
            digest: of the manifest.
            name: of the file in its folder.
            most_bytes: a longer one is none.
        """
        ...

    def is_up(self, member: Member) -> bool:
        """False: it has failed and its pause has not ended; it is not asked with a reader's chunk."""
        ...

    async def facts(self, address: str) -> Facts | None:
        """Asks an engine who it is; None: it does not say so within a second, or is no peer of this engine."""
        ...

    def rejected(self, member: Member) -> None:
        """What the peer sent was not the chunk: wrong key, lengths or checksums. Thirty of them leave it out."""
        ...

    def statistics(self) -> dict[str, int]:
        """Counters since the start, by the names of `peer.PeerCounts`."""
        ...

    def table(self) -> list[dict[str, str | int | float | bool | None]]:
        """One row for each address that was asked: `address`, `state`, `first_byte_p95_seconds`, and its counters."""
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

    async def lend(self, key: bytes, dataset: str, *, member: str, wait: bool, due_seconds: float) -> Loan:
        """Answers for one chunk: there, coming, or neither: the peer is to fetch it itself.

        Starts its fetch from the store, if it is kept here.

        Args:
            key: 16 bytes.
            dataset: digest of the manifest that the peer knows it by.
            member: id of the peer.
            wait: answer when a fetch of it has ended, at most half a second later.
            due_seconds: when the peer's reader needs it.
        """
        ...


class Peers(Protocol):
    """Server, client and membership of one engine."""

    @property
    def client(self) -> PeerClient:
        """Asks them."""
        ...

    def members(self) -> AsyncIterator[tuple[Member, ...]]:
        """The other members, at first after one round of asking all of them, then at each change."""
        ...

    def statistics(self) -> dict[str, int]:
        """Counters of the client (`PeerCounts`) and of the server (`messages.Counts`)."""
        ...
