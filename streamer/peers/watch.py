"""Decides when a peer is so late that the store is asked as well."""

from __future__ import annotations

import asyncio

import msgspec

from streamer.fetch.presence_clock import Alarm, PresenceClock
from streamer.peers.peer import Peer
from streamer.peers.transfer import PeerTransfer

# The store is asked as well if there is no answer or progress for this long: half of the time until the chunk is
# needed, between these bounds. Tried instead: 3 times the peer's p95 asked the store for 3 to 11 % of the chunks on
# busy nodes (2026-11-23); 1.5 times the p95 sent less twice (0.2 instead of 0.4 to 1.6 %), but a stopped peer held a
# reader up for 1.5 s instead of 0.7 (2026-11-25).
_LATE_SECONDS = 0.25
_MAX_LATE_SECONDS = 1.0
# A body that comes more slowly is late, and a peer that sends less to all requests together is silent.
_MIN_BYTES_PER_SECOND = 1 << 20
# The store is asked as well after this many looks, whatever is left of the budget of a busy peer.
_MAX_LOOKS = 4


class _Mark(msgspec.Struct, frozen=True):
    """Remembers what had come by a look.

    Attributes:
        at: time of the look, on the clock.
        received: bytes of the body.
        peer_bytes: bytes that the peer had sent to all requests.
        peer_answers: answers that it had begun.
        has_answer: whether this request had an answer.
    """

    at: float
    received: int
    peer_bytes: int
    peer_answers: int
    has_answer: bool


class Watch:
    """Watches one request from its start to `end`, by looks.

    | at a look                                        | then                                        |
    | ------------------------------------------------ | ------------------------------------------- |
    | the answer has begun, or its body comes quickly  | there is another look                       |
    | nothing comes, and the peer sends to no request  | it is late: the store is asked as well      |
    | nothing comes, the peer sends to others          | it is late if the budget of the peer allows |
    | the same for the fourth time                     | it is late                                  |

    Args:
        clock: clock that stops while this process does not run.
        peer: the peer that is asked.
        transfer: runs the request.
        late: is set when the store should be asked as well.
        due_seconds: seconds until the first reader needs the chunk.
        grace_seconds: seconds that the peer may take longer to answer.

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
        """Records a line of the answer's head (0), or `count` bytes of the body."""
        peer = self._peer
        peer.sent_bytes += count
        if not self._has_answer:
            self._has_answer = True
            peer.answers += 1
            if not self._grace_seconds:
                peer.first_byte.add(self._clock.loop.time() - self.asked_at)

    def end(self, *, cancelled: bool) -> bool:
        """Records the end of the request, which the store may have cancelled by being faster.

        Returns:
            Whether the peer is down now.
        """
        self._alarm.cancel()
        self._clock.end()
        if not cancelled and self._has_answer:
            self._peer.breaker.record_answer()
        lost = cancelled and self._is_late and self._is_silent()
        return lost and self._peer.breaker.record_loss(self.asked_at, self._clock.loop.time())

    def _check_progress(self) -> None:
        self._looks += 1
        # The answer began since the last look, or its body arrives fast enough.
        began = self._has_answer and (not self._mark.has_answer or self._transfer.is_waiting_for_memory)
        has_progress = began or self._is_enough(self._transfer.received - self._mark.received)
        # A budget pays for what a peer that sends to others sends late: to ask the store for all of it would double the
        # work.
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
        return count >= (self._clock.time() - self._mark.at) * _MIN_BYTES_PER_SECOND
