"""What this engine knows of one peer, and whether it is asked.

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
from streamer.peers.protocol import Facts
from streamer.peers.transfer import Transfer

PAUSE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 60.0
# On a machine whose cores are all busy a peer is silent for 0.3 s now and then. Where two lost races took it down, the
# first epoch of four jobs read a third of the dataset more, in its pauses (load 15 on two cores, 2026-11-23).
_LOST_SECONDS = 1.0
# Requests at once that may be answered with a chunk; it sends 16 at once, to all.
_WINDOW = 16
# Of the requests: what a peer that sends to others may cost the store because it is slow.
_HEDGES_SHARE = 0.02
# So many wrong answers are no accident.
_MOST_WRONG = 30


class Breaker(msgspec.Struct):
    """Whether a peer is asked, as a pure decision. Times are of one clock.

    Attributes:
        is_up: whether it is asked for chunks.
        since: when that changed last.
    """

    is_up: bool = True
    since: float = 0.0
    _first_pause: float = PAUSE_SECONDS
    _probes: int = 0
    _lost_since: float = inf

    @property
    def pause_seconds(self) -> float:
        """Until the next probe, counted from the last failure."""
        return pause_seconds(self._probes + 1, self._first_pause, _MOST_PAUSE_SECONDS, 1.0)

    def failed(self, asked_at: float, now: float, *, pause_seconds: float = PAUSE_SECONDS) -> bool:
        """A connection was refused, reset, or not made in time.

        Args:
            asked_at: when the request left.
            now: the time.
            pause_seconds: until the first probe.

        Returns:
            Whether it is down now and was not before.
        """
        if not self.is_up or asked_at < self.since:
            return False
        self.is_up, self.since, self._lost_since = False, now, inf
        self._first_pause, self._probes = pause_seconds, 0
        return True

    def lost(self, asked_at: float, now: float) -> bool:
        """The store was faster, and the peer had sent next to nothing to any request meanwhile; returns as `failed`."""
        if not self.is_up or asked_at < self.since:
            return False
        self._lost_since = min(self._lost_since, asked_at)
        return now - self._lost_since >= _LOST_SECONDS and self.failed(asked_at, now)

    def answered(self) -> None:
        """It has answered a request to its end."""
        self._lost_since = inf

    def probed(self, answered: bool, now: float) -> None:
        """A probe has ended."""
        if answered:
            self.is_up, self.since, self._first_pause, self._probes = True, now, PAUSE_SECONDS, 0
        else:
            self._probes += 1


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
        budget: pays for asking the store as well.
        count: what happened.
        first_byte: seconds until answers began.
        sent_bytes: of the bodies of its answers.
        answers: how many it has begun.
        idle: transfers that can be used again.
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
        self.window = FairGate(_WINDOW)
        self._instance = ""
        self._wrong = 0

    def __repr__(self) -> str:
        return f"Peer({self.address}, {self.state})"

    @property
    def is_up(self) -> bool:
        """Whether it is asked for chunks."""
        return self.breaker.is_up and not self._is_left_out

    @property
    def state(self) -> str:
        """For people."""
        return "left out" if self._is_left_out else "up" if self.breaker.is_up else "down"

    @property
    def _is_left_out(self) -> bool:
        """It has sent wrong bytes too often."""
        return self._wrong >= _MOST_WRONG

    def wrong(self) -> bool:
        """It has sent wrong bytes; returns whether that was once too often."""
        self._wrong += 1
        self.count.peer_wrong += 1
        return self._wrong == _MOST_WRONG

    def identified(self, facts: Facts) -> None:
        """It has sent its facts; an engine that was started again is trusted again."""
        if self._instance not in ("", facts.instance):
            self._wrong = 0
        self._instance = facts.instance

    def row(self) -> dict[str, str | int | float | bool | None]:
        """Its address, `state`, `first_byte_p95_seconds` and counts."""
        seen = self.first_byte.quantiles
        return {
            "address": self.address,
            "state": self.state,
            "first_byte_p95_seconds": None if seen is None else seen.p95,
            **msgspec.structs.asdict(self.count),
        }

    def close(self) -> None:
        """Frees what is idle."""
        while self.idle:
            self.idle.pop().close()
