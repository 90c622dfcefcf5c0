"""Decides when a request to a peer is so late that the store is asked as well.

`peers/client.py` makes a `Watch` for each request for a chunk.
"""

from __future__ import annotations

import asyncio

import msgspec

from streamer.fetch.presence_clock import Alarm, PresenceClock
from streamer.peers.peer import Peer
from streamer.peers.transfer import PeerTransfer

# A request is looked at after half of the time until the chunk is needed, but between these bounds. Two other rules
# were tried. With 3 times the p95 of the peer's times to first byte, the store was asked for 3 to 11 % of the chunks on
# busy nodes (2026-11-23). With 1.5 times the p95 fewer chunks were sent twice (0.2 instead of 0.4 to 1.6 %), but a
# stopped peer held a reader up for 1.5 s instead of 0.7 (2026-11-25).
_LATE_SECONDS = 0.25
_MAX_LATE_SECONDS = 1.0
# A body that comes more slowly than this makes no progress. A peer that sends less to all requests together is silent.
_MIN_BYTES_PER_SECOND = 1 << 20
# A request without progress at this look or a later one is late, whatever is left of the budget of a busy peer.
_MAX_LOOKS = 4


class _Mark(msgspec.Struct, frozen=True):
    """Remembers what had arrived at the time of a look.

    Attributes:
        at: time of the look, in seconds of the watch's clock.
        received: bytes of this request's body.
        peer_bytes: bytes of bodies that the peer had sent to all requests.
        peer_answers: number of answers that the peer had begun, to all requests.
        has_answer: whether the answer to this request had begun.
    """

    at: float
    received: int
    peer_bytes: int
    peer_answers: int
    has_answer: bool


class Watch:
    """Watches one request from its start to `end`, by looks; the first row that holds since the last look decides.

    | since the last look                                      | then                                          |
    | -------------------------------------------------------- | --------------------------------------------- |
    | the answer began, its body came quickly, or waits here   | there is another look                         |
    | for memory                                               |                                               |
    | the peer sent next to nothing to any request             | the request is late: the store is asked, too  |
    | the peer sent to others, at the fourth look or a later   | the request is late                           |
    | one                                                      |                                               |
    | the peer sent to others, at an earlier look              | it is late if the budget of the peer allows,  |
    |                                                          | else there is another look                    |

    A request that is late has no further look.

    Args:
        clock: clock that stops while this process does not run.
        peer: the peer that is asked.
        transfer: runs the request.
        late: is set when the store should be asked as well.
        due_seconds: seconds until the first reader needs the chunk.
        grace_seconds: seconds that the peer may take longer to begin its answer, because it was asked to wait. If not
            0, the time to first byte is not added to `Peer.first_byte`.

    Attributes:
        asked_at: time at which the request began, on the loop's clock.
    """

    def __init__(
        self,
        clock: PresenceClock,
        peer: Peer,
        transfer: PeerTransfer,
        late: asyncio.Event,
        *,
        due_seconds: float,
        grace_seconds: float,
    ) -> None:
        self._clock = clock
        self._peer = peer
        self._transfer = transfer
        self._late = late
        self._seconds = min(max(_LATE_SECONDS, due_seconds / 2), _MAX_LATE_SECONDS)
        self._grace_seconds = grace_seconds
        self._is_late = False
        self._has_answer = False
        self._looks = 0
        self.asked_at = clock.loop.time()
        clock.begin()
        self._mark = self._make_mark()
        self._alarm = Alarm(clock, clock.time() + self._seconds + grace_seconds, self._check_progress)

    def record_bytes(self, count: int) -> None:
        """Records that `count` bytes of the body arrived, or, with 0, a line of the answer's head (`OnBytes`)."""
        peer = self._peer
        peer.sent_bytes += count
        if not self._has_answer:
            self._has_answer = True
            peer.answers += 1
            if not self._grace_seconds:
                peer.first_byte.add(self._clock.loop.time() - self.asked_at)

    def end(self, *, cancelled: bool) -> bool:
        """Records the end of the request.

        Args:
            cancelled: whether it was cancelled, as when the store was faster.

        Returns:
            Whether this loss took the peer down (`Breaker.record_loss`). The caller starts to probe it then.
        """
        self._alarm.cancel()
        self._clock.end()
        if not cancelled and self._has_answer:
            self._peer.breaker.record_answer()
        lost = cancelled and self._is_late and self._is_silent()
        return lost and self._peer.breaker.record_loss(self.asked_at, self._clock.loop.time())

    def _check_progress(self) -> None:
        """Looks once, as the table of the class says, and sets the time of the next look."""
        self._looks += 1
        # The answer began since the last look, or its body arrives fast enough.
        began = self._has_answer and (not self._mark.has_answer or self._transfer.is_waiting_for_memory)
        has_progress = began or self._is_enough(self._transfer.received - self._mark.received)
        # A peer that sends to others is busy. Its budget bounds how often the store is asked as well, since asking for
        # all its chunks would double the work.
        if not has_progress and (self._is_silent() or self._looks >= _MAX_LOOKS or self._peer.budget.take(0)):
            self._is_late = True
            self._peer.count.peer_hedges += 1
            self._late.set()
        else:
            self._mark = self._make_mark()
            self._alarm.move(self._clock.time() + self._seconds + self._grace_seconds * (not self._has_answer))

    def _make_mark(self) -> _Mark:
        return _Mark(
            at=self._clock.time(),
            received=self._transfer.received,
            peer_bytes=self._peer.sent_bytes,
            peer_answers=self._peer.answers,
            has_answer=self._has_answer,
        )

    def _is_silent(self) -> bool:
        """Whether the peer has begun no answer and sent next to nothing since the last look, to any request."""
        sent = self._peer.sent_bytes - self._mark.peer_bytes
        return self._peer.answers == self._mark.peer_answers and not self._is_enough(sent)

    def _is_enough(self, count: int) -> bool:
        """Whether so many bytes since the last look are at least `_MIN_BYTES_PER_SECOND`."""
        return count >= (self._clock.time() - self._mark.at) * _MIN_BYTES_PER_SECOND
