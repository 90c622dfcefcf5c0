"""Keeps the state of one peer, and decides whether it is asked for chunks.

`peers/client.py` has one for each address; `peers/watch.py` records when requests are late.

    up --a connection or a token fails, or requests lose against the store for 1 s--> down
    down --a probe is not answered: the pause to the next one doubles, up to 60 s--> down
    down --a probe is answered--> up

One outage counts once: a failure of a request that was sent before it changes nothing. When each of eight requests
counted, the first pause was 60 s instead of 1 (2026-11-22).
"""

from __future__ import annotations

from math import inf

import msgspec

from streamer.fetch.fair_gate import FairGate
from streamer.fetch.hedge import HedgeBudget, Sampled
from streamer.fetch.retry import pause_seconds
from streamer.peers.protocol import PeerFacts
from streamer.peers.transfer import PeerTransfer

# Pause from a failure to the first probe.
PAUSE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 60.0
# A silent peer is down when its requests have lost against the store for this long without an answer between. On a
# machine whose cores are all busy a peer is silent for 0.3 s now and then. When two lost requests sufficed, the first
# epoch of four jobs read a third of the dataset more from the store (load 15 on two cores, 2026-11-23).
_LOST_SECONDS = 1.0
# At most this many requests for chunks are sent to a peer at once. By default it sends as many at once, to all peers.
_WINDOW = 16
# The store may be asked as well for this share of the requests to a peer that is slow because it sends to others.
_HEDGES_SHARE = 0.02
# A peer with this many wrong answers is left out until its engine starts again.
_MOST_WRONG = 30


class Breaker(msgspec.Struct):
    """Decides whether a peer is up or down, by the rules above. All times are seconds of one clock.

    Attributes:
        is_up: whether the peer may be asked for chunks.
        since: time of the last change of `is_up`.
    """

    is_up: bool = True
    since: float = 0.0
    _first_pause: float = PAUSE_SECONDS
    _probes: int = 0
    _lost_since: float = inf

    @property
    def pause_seconds(self) -> float:
        """Seconds from the failure, or from the last probe, to the next probe."""
        return pause_seconds(self._probes + 1, self._first_pause, _MOST_PAUSE_SECONDS, 1.0)

    def record_failure(self, asked_at: float, now: float, *, pause_seconds: float = PAUSE_SECONDS) -> bool:
        """Records that a request failed, and takes the peer down.

        Does nothing if the peer is down, or the request was sent before it last came up.

        Args:
            asked_at: time at which the request was sent.
            now: the present time.
            pause_seconds: pause until the first probe.

        Returns:
            Whether this call took the peer down. The caller starts to probe it then.
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
        """Records that the store was faster than a request, and that the peer sent next to nothing to any request.

        Takes the peer down if that has been so for `_LOST_SECONDS`.

        Args:
            asked_at: time at which the request was sent.
            now: the present time.

        Returns:
            Whether this call took the peer down.
        """
        if not self.is_up or asked_at < self.since:
            return False
        self._lost_since = min(self._lost_since, asked_at)
        return now - self._lost_since >= _LOST_SECONDS and self.record_failure(asked_at, now)

    def record_answer(self) -> None:
        """Records that the peer answered a request: requests that lost before do not count any more."""
        self._lost_since = inf

    def record_probe(self, answered: bool, now: float) -> None:
        """Records the end of a probe: the peer is up if it answered, else the next pause is longer."""
        if answered:
            self.is_up = True
            self.since = now
            self._first_pause = PAUSE_SECONDS
            self._probes = 0
        else:
            self._probes += 1


class PeerCounts(msgspec.Struct):
    """Counts what came of the requests to one peer, or to all of them, since the start.

    Attributes:
        peer_requests: requests for chunks, including those that ask again.
        peer_received_bytes: bytes of chunk files, including those that were not needed in the end.
        peer_hedges: requests that were late, so that the store was asked as well.
        peer_failures: connections that failed or broke, and refusals of the token or the certificate.
        peer_refused: answers 503: the peer is busy or leaving.
        peer_wrong: answers that the protocol does not allow, and files that were not the chunk.
    """

    peer_requests: int = 0
    peer_received_bytes: int = 0
    peer_hedges: int = 0
    peer_failures: int = 0
    peer_refused: int = 0
    peer_wrong: int = 0


class Peer:
    """Holds what is known of the peer at one address. Owned by the `PeerClient`, on its event loop.

    Args:
        address: host:port.

    Attributes:
        breaker: decides whether the peer is up.
        budget: how often the store may be asked as well while the peer sends to others.
        count: counts of the requests to it.
        first_byte: seconds until its last answers began, of requests without `wait`.
        sent_bytes: bytes of the bodies of all its answers, up to 64 KiB of each left out.
        answers: number of answers that it began.
        idle: transfers that are not in use, with their connections.
        window: limits the requests for chunks at once.
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
        """Whether the peer is asked for chunks: it is up, and not left out for its wrong answers."""
        return self.breaker.is_up and not self._is_left_out

    @property
    def state(self) -> str:
        """The state in words: "up", "down" or "left out"."""
        return "left out" if self._is_left_out else "up" if self.breaker.is_up else "down"

    @property
    def _is_left_out(self) -> bool:
        """Whether the peer gave too many wrong answers."""
        return self._wrong >= _MOST_WRONG

    def count_wrong(self) -> bool:
        """Counts a wrong answer; returns whether the peer is left out from this one on."""
        self._wrong += 1
        self.count.peer_wrong += 1
        return self._wrong == _MOST_WRONG

    def identify(self, facts: PeerFacts) -> None:
        """Records the facts that the peer answered; forgets wrong answers if its engine was started again."""
        if self._instance not in ("", facts.instance):
            self._wrong = 0
        self._instance = facts.instance

    def row(self) -> dict[str, str | int | float | bool | None]:
        """Returns address, `state`, `first_byte_p95_seconds` (None if unknown) and the counts, by name."""
        seen = self.first_byte.quantiles
        return {
            "address": self.address,
            "state": self.state,
            "first_byte_p95_seconds": None if seen is None else seen.p95,
            **msgspec.structs.asdict(self.count),
        }

    def close(self) -> None:
        """Closes the idle transfers and so their connections."""
        while self.idle:
            self.idle.pop().close()
