"""Keeps the state of one peer, and decides whether it is asked.

    up --failed, or races lost in a row for 1 s--> down, for 1 s --probe fails--> down, for 2 s ... 60 s
    down --probe answered--> up

One outage counts once: what fails of requests that left before it changes nothing. In a prototype eight requests under
way made 1 s into 60 (2026-11-22).
"""

from __future__ import annotations

from math import inf

import msgspec

from streamer.fetch.fair_gate import FairGate
from streamer.fetch.hedge import HedgeBudget, Sampled
from streamer.fetch.retry import pause_seconds
from streamer.peers.protocol import PeerFacts
from streamer.peers.transfer import PeerTransfer

PAUSE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 60.0
# On a machine whose cores are all busy a peer is silent for 0.3 s now and then. Where two lost races took it down, the
# first epoch of four jobs read a third of the dataset more, in its pauses (load 15 on two cores, 2026-11-23).
_LOST_SECONDS = 1.0
# Requests at once that may be answered with a chunk; it sends 16 at once, to all.
_WINDOW = 16
# A peer that sends to others may cost the store this share of the requests because it is slow.
_HEDGES_SHARE = 0.02
# A peer with this many wrong answers is broken.
_MOST_WRONG = 30


class Breaker(msgspec.Struct):
    """Decides whether a peer is asked. Pure; all times are of one clock.

    Attributes:
        is_up: whether the peer is asked for chunks.
        since: time of the last change of `is_up`.
    """

    is_up: bool = True
    since: float = 0.0
    _first_pause: float = PAUSE_SECONDS
    _probes: int = 0
    _lost_since: float = inf

    @property
    def pause_seconds(self) -> float:
        """Seconds from the last failure to the next probe."""
        return pause_seconds(self._probes + 1, self._first_pause, _MOST_PAUSE_SECONDS, 1.0)

    def record_failure(self, asked_at: float, now: float, *, pause_seconds: float = PAUSE_SECONDS) -> bool:
        """Records that a connection for a request of `asked_at` was refused, reset, or not made in time.

        Returns:
            Whether the peer is down now and was not before.
        """
        if not self.is_up or asked_at < self.since:
            return False
        self.is_up = False
        self.since = now
        self._lost_since = inf
        self._first_pause = pause_seconds
        self._probes = 0
        return True

    def record_loss(self, asked_at: float, now: float) -> bool:
        """Records that the store was faster while the peer sent next to nothing to any request.

        Returns:
            Whether the peer is down now and was not before.
        """
        if not self.is_up or asked_at < self.since:
            return False
        self._lost_since = min(self._lost_since, asked_at)
        return now - self._lost_since >= _LOST_SECONDS and self.record_failure(asked_at, now)

    def record_answer(self) -> None:
        """Records a request that the peer answered to its end."""
        self._lost_since = inf

    def record_probe(self, answered: bool, now: float) -> None:
        """Records the end of a probe."""
        if answered:
            self.is_up = True
            self.since = now
            self._first_pause = PAUSE_SECONDS
            self._probes = 0
        else:
            self._probes += 1


class PeerCounts(msgspec.Struct):
    """Counts since the start.

    Attributes:
        peer_requests: requests for chunks, including those that ask again.
        peer_received_bytes: bytes of chunk files, including those that were not needed in the end.
        peer_hedges: late requests, for which the store was asked as well.
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
    """Holds what is known of one address. Owned by the client, on its loop.

    Args:
        address: host:port.

    Attributes:
        breaker: decides whether the peer is asked.
        budget: pays for asking the store as well.
        count: counters of its requests.
        first_byte: seconds until its answers began.
        sent_bytes: bytes of the bodies of its answers.
        answers: number of answers that it began.
        idle: transfers that can be used again.
        window: limits the requests at once.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.breaker = Breaker()
        self.budget = HedgeBudget(_HEDGES_SHARE, 1.0)
        self.count = PeerCounts()
        self.first_byte = Sampled()
        self.sent_bytes = 0
        self.answers = 0
        self.idle: list[PeerTransfer] = []
        self.window = FairGate(_WINDOW)
        self._instance = ""
        self._wrong = 0

    def __repr__(self) -> str:
        return f"Peer({self.address}, {self.state})"

    @property
    def is_up(self) -> bool:
        """Whether the peer is asked for chunks."""
        return self.breaker.is_up and not self._is_left_out

    @property
    def state(self) -> str:
        """The state in words: "up", "down" or "left out"."""
        return "left out" if self._is_left_out else "up" if self.breaker.is_up else "down"

    @property
    def _is_left_out(self) -> bool:
        """Whether it sent wrong bytes too often."""
        return self._wrong >= _MOST_WRONG

    def count_wrong(self) -> bool:
        """Records wrong bytes; returns whether the peer is left out from now on."""
        self._wrong += 1
        self.count.peer_wrong += 1
        return self._wrong == _MOST_WRONG

    def identify(self, facts: PeerFacts) -> None:
        """Records its facts; an engine that was started again is trusted again."""
        if self._instance not in ("", facts.instance):
            self._wrong = 0
        self._instance = facts.instance

    def row(self) -> dict[str, str | int | float | bool | None]:
        """Returns address, `state`, `first_byte_p95_seconds` and counts."""
        seen = self.first_byte.quantiles
        return {
            "address": self.address,
            "state": self.state,
            "first_byte_p95_seconds": None if seen is None else seen.p95,
            **msgspec.structs.asdict(self.count),
        }

    def close(self) -> None:
        """Frees its idle transfers."""
        while self.idle:
            self.idle.pop().close()
