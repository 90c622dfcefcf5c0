"""Says when the store is to be asked as well."""

from __future__ import annotations

from collections.abc import Callable

from streamer.fetch.presence_clock import Alarm, PresenceClock
from streamer.peers.peer import MOST_LATE_SECONDS, Peer
from streamer.peers.transfer import Transfer

# A body must bring this much between two looks: 1 MiB/s.
_LEAST_BYTES = int(MOST_LATE_SECONDS * (1 << 20))


class Watch:
    """Watches one request from its start to `end`.

    Args:
        clock: stops while this process does not run.
        peer: that is asked.
        transfer: of the request.
        on_late: called at most once.
        waits: the peer may answer that much later.
    """

    def __init__(
        self, clock: PresenceClock, peer: Peer, transfer: Transfer, on_late: Callable[[], None], *, waits: float
    ) -> None:
        self._clock = clock
        self._peer = peer
        self._transfer = transfer
        self._waits = waits
        self._seconds = seconds = peer.late_seconds + waits
        self._on_late = on_late
        self._seen_bytes = -_LEAST_BYTES
        self.is_late = False
        self.asked_at = clock.loop.time()
        self._is_first = True
        clock.begin()
        self._alarm = Alarm(clock, clock.time() + seconds, self._look)

    def end(self, *, cancelled: bool) -> bool:
        """The request has ended.

        Args:
            cancelled: the store was faster.

        Returns:
            Whether the peer is down now.
        """
        self._alarm.cancel()
        self._clock.end()
        lost = cancelled and self.is_late and self._is_silent()
        return lost and self._peer.breaker.lost(self.asked_at, self._clock.loop.time())

    def received(self) -> None:
        """The peer has sent something."""
        peer, now = self._peer, self._clock.loop.time()
        peer.last_byte_at = now
        if self._is_first:
            self._is_first = False
            peer.breaker.sent()
            if not self._waits:
                peer.first_byte.add(now - self.asked_at)

    def _look(self) -> None:
        received, begun = self._transfer.received, self._transfer.has_answer
        moves = begun and received - self._seen_bytes >= _LEAST_BYTES
        self._seen_bytes = received
        # A peer that sends to others is busy; to ask the store for all that it sends late would double the work.
        if not (moves or self._transfer.is_waiting_for_memory) and (self._is_silent() or self._peer.budget.take(0)):
            self.is_late = True
            self._peer.count.peer_hedges += 1
            self._on_late()
            return
        if begun:
            self._seconds = MOST_LATE_SECONDS
        self._alarm.move(self._clock.time() + self._seconds)

    def _is_silent(self) -> bool:
        """Whether the peer has sent nothing to any request for as long as this one is late."""
        return self._clock.loop.time() - self._peer.last_byte_at >= self._seconds
