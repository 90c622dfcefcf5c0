"""What this engine knows of one peer."""

from __future__ import annotations

import msgspec

from streamer.fetch.fair_gate import FairGate
from streamer.fetch.hedge import HedgeBudget, Sampled
from streamer.peers.breaker import Breaker
from streamer.peers.protocol import Facts
from streamer.peers.transfer import Transfer

# Requests at once that may be answered with a chunk; it sends 16 at once, to all.
_WINDOW = 16
# Of the requests: what a peer that sends to others may cost the store because it is slow.
_HEDGES_SHARE = 0.02
# So many wrong answers are no accident.
_MOST_WRONG = 30


class PeerCounts(msgspec.Struct):
    """Since the start.

    Attributes:
        peer_requests: requests for chunks, those that ask again included.
        peer_received_bytes: of chunk files, those that were not needed in the end included.
        peer_hedges: requests that were late: the store was asked as well.
        peer_failures: connections that failed or broke.
        peer_refused: answers that the peer is busy.
        peer_wrong: answers that were not the chunk.
    """

    peer_requests: int = 0
    peer_received_bytes: int = 0
    peer_hedges: int = 0
    peer_failures: int = 0
    peer_refused: int = 0
    peer_wrong: int = 0


class Peer:
    """One address. Owned by the client, on its loop.

    Args:
        address: host:port.

    Attributes:
        breaker: whether it is asked.
        count: what happened.
        first_byte: seconds until answers began.
        sent_bytes: of the bodies of its answers.
        answers: how many it has begun.
        idle: transfers that can be used again.
        instance: of the facts it said last; "": none yet.
        window: of requests.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.breaker = Breaker()
        self.budget = HedgeBudget(_HEDGES_SHARE, 1.0)
        self.count = PeerCounts()
        self.first_byte = Sampled()
        self.sent_bytes = 0
        self.answers = 0
        self.idle: list[Transfer] = []
        self.instance = ""
        self.window = FairGate(_WINDOW)
        self._wrong = 0

    def __repr__(self) -> str:
        return f"Peer({self.address}, {self.state})"

    @property
    def is_left_out(self) -> bool:
        """It has sent wrong bytes too often."""
        return self._wrong >= _MOST_WRONG

    @property
    def state(self) -> str:
        """For people."""
        return "left out" if self.is_left_out else "up" if self.breaker.is_up else "down"

    def wrong(self) -> bool:
        """It has sent wrong bytes; returns whether that was once too often."""
        self._wrong += 1
        self.count.peer_wrong += 1
        return self._wrong == _MOST_WRONG

    def identified(self, facts: Facts) -> None:
        """It has sent its facts; an engine that was started again is trusted again."""
        if self.instance not in ("", facts.instance):
            self._wrong = 0
        self.instance = facts.instance

    def close(self) -> None:
        """Frees what is idle."""
        while self.idle:
            self.idle.pop().close()
