"""The pump: asks the policy for what sessions need, opens what is there, launches what is not.

Synchronous, on the engine's loop. Sessions say where they stand and `kick`; flights land and `kick`; each kick pumps
all sessions once, those that wait first. Nothing polls.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from streamer.cache.decision import Admit, Freed, Hit, Wait
from streamer.cache.policy import CachePolicy
from streamer.engine.flights import Flight, Flights, Passenger
from streamer.engine.pages import Pages
from streamer.engine.session import EngineSession
from streamer.engine.track import Use
from streamer.errors import BrokenError, CacheError, CacheFullError, StreamerError

logger = logging.getLogger(__name__)

# A chunk that failed in look-ahead is tried again after this pause, or when its reader comes to it.
COOLING_SECONDS = 2.0
# A chunk that the folder would not take is tried again after this pause: victims leave, a full disk is emptied.
REFUSED_SECONDS = 0.2
# A job may have this share of the limit open, or what it was planned with if that is more: chunks that are not open can
# give way, so a trainer that asks for everything and reads nothing leaves room for the next one.
OPEN_SHARE = 0.5
# So often in a row a chunk may be refused before its reader hears of it.
MAX_REFUSALS = 10


class Pump:
    """Moves all sessions. Owned by the engine; `flights` is set by it before the first kick.

    Args:
        policy: what may be kept, fetched, evicted.
        sessions: the engine's, by name.
        pages: what the kernel is told of chunks.
        loop: the engine's.
    """

    flights: Flights

    def __init__(
        self,
        policy: CachePolicy,
        sessions: dict[str, EngineSession],
        pages: Pages,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.draining = False
        self._policy = policy
        self._sessions = sessions
        self._pages = pages
        self._loop = loop
        self._refusals: Counter[bytes] = Counter()
        self._kicked = False
        self._asking: set[str] = set()

    def __repr__(self) -> str:
        return f"Pump(sessions={len(self._sessions)}, flights={len(self.flights)}, draining={self.draining})"

    def kick(self) -> None:
        """Something changed: pump all sessions once, soon."""
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._pump_all)

    def freed(self, freed: Freed) -> None:
        """The policy gave chunks up: their files go, and sessions that had one in look-ahead ask for it again."""
        self._lost(freed.victims)
        self.flights.unlink(freed.victims)
        if freed.victims or freed.promoted:
            self.kick()

    def landed(self, flight: Flight, error: StreamerError | None) -> None:
        """A flight is over."""
        if flight.limit_bytes is not None:
            self.freed(self._policy.set_limit(flight.limit_bytes))
        if error is None:
            self._refusals.pop(flight.key, None)
            for passenger in flight.passengers:
                passenger.session.track.arrived(passenger.chunk)
            self.freed(self._policy.published(flight.key))
        else:
            self._policy.failed(flight.key)
            pause = self._pause_after(flight, error)
            for passenger in flight.passengers:
                self._missed(passenger, error, pause)
        self.kick()

    # ------------------------------------------------------------ one session

    def _pump_all(self) -> None:
        self._kicked = False
        live = [session for session in self._sessions.values() if session.admitted and session.failed is None]
        # Only of those who can be helped: one that has failed keeps its questions until its reader closes it.
        self._asking = {session.owner for session in live if session.track.has_questions()}
        # First all that is over, of everybody: a stuck reader was told that all is open while another's chunks of
        # steps that it had read were not counted back yet (2 in 11 runs with the smallest cache, 2026-11-20).
        for session in live:
            self._alone(self._release_what_is_over, session)
        # Not by how much they ask for: whoever asks for everything would come first for ever.
        for session in sorted(live, key=lambda one: (not one.stands, one.fill)):
            if session.failed is None:
                self._alone(self._pump, session)

    def _alone(self, work: Callable[[EngineSession], None], session: EngineSession) -> None:
        """What goes wrong with one session ends that one: the others must move."""
        try:
            work(session)
        except StreamerError as error:
            session.fail(error)
        except Exception as error:
            logger.exception("session %s failed", session.name)
            session.fail(BrokenError(f"the engine failed over this session: {error!r}; see its log"))

    def _pump(self, session: EngineSession) -> None:
        # What is there is opened first: an open chunk is nobody's victim.
        self._open_what_is_there(session)
        self._ask_ahead(session)
        self._open_what_is_there(session)
        for chunk in session.reached_cooling():
            self._retry(session, chunk)
        session.announce()

    def _release_what_is_over(self, session: EngineSession) -> None:
        for use in session.track.take_over():
            key = session.dataset.key(use.chunk)
            if not session.track.holds(use.chunk):
                session.keys.pop(key, None)
            self.freed(self._policy.release(session.name, use.chunk))
            self._pages.used(key)

    def _ask_ahead(self, session: EngineSession) -> None:
        """Asks the policy for what the session needs next, until it has enough ahead or there is no room."""
        track = session.track
        while not self.draining:
            if (question := track.take_question()) is not None:
                if self._must_wait(session, question) or not self._ask(session, question):
                    track.ask_later(question)
                    return
                continue
            use = track.next_use()
            if use is None or (use.first > track.want and track.ahead_bytes >= session.lookahead_bytes):
                return
            if session.running_epoch is None:
                self._start_epoch(session, use.epoch)
            self._policy.look_ahead(session.name, use.chunk)
            track.hold(use)
            # There by an earlier use that is not over yet: a hit, and counted as one.
            if track.is_there(use.chunk) and not self._ask(session, use):
                track.ask_later(use)

    def _ask(self, session: EngineSession, use: Use) -> bool:
        """One question to the policy; False: no room now."""
        track = session.track
        key = session.dataset.key(use.chunk)
        session.keys[key] = use.chunk
        try:
            answer = self._policy.need(session.name, use.chunk, head=track.blocks_line(use))
        except CacheFullError as error:
            if not self._others_can_release(session):
                session.fail(error)
            return False
        passenger = Passenger(session, use.chunk, track.first_need(use.chunk))
        match answer:
            case Hit():
                track.arrived(use.chunk)
                self._pages.due(key)
            case Admit(victims=victims):
                self._lost(victims)
                self.flights.launch(key, passenger, victims)
            case Wait(fetching=True) if self.flights.join(key, passenger):
                pass
            case Wait():
                return False
        if use.number >= 0:
            session.count(use.epoch, int(session.dataset.file_bytes[use.chunk]), hit=not isinstance(answer, Admit))
        return True

    def _must_wait(self, session: EngineSession, use: Use) -> bool:
        """The session has all that it was planned with, and another job waits for room."""
        others_ask = bool(self._asking - {session.owner})
        return others_ask and session.fill >= 1.0 and not session.track.blocks_line(use)

    def _others_can_release(self, session: EngineSession) -> bool:
        """All room is open, but some other reader has steps to read: it gives room back when it has read them."""
        return any(other is not session and other.moves for other in self._sessions.values())

    def _open_what_is_there(self, session: EngineSession) -> None:
        for use in session.track.openable():
            if not session.track.blocks_line(use) and self._has_enough_open(session):
                return
            self._open(session, use)

    def _has_enough_open(self, session: EngineSession) -> bool:
        if session.open_bytes() < session.planned_bytes:
            return False
        job = [other for other in self._sessions.values() if other.owner == session.owner]
        most = max(sum(one.planned_bytes for one in job), OPEN_SHARE * self._policy.limit_bytes)
        return sum(one.open_bytes() for one in job) >= most

    def _open(self, session: EngineSession, use: Use) -> None:
        if use.epoch != session.running_epoch:
            self._start_epoch(session, use.epoch)
        if self._policy.opened(session.name, use.chunk):
            session.track.opened(use)
        else:
            session.track.lost(use.chunk)
            self.kick()

    def _start_epoch(self, session: EngineSession, epoch: int) -> None:
        """The first epoch begins with its first use, later ones when the reader gets there."""
        session.running_epoch = epoch
        self._policy.start_epoch(session.name, session.track.remaining(epoch))

    # ------------------------------------------------------------ what did not work

    def _pause_after(self, flight: Flight, error: StreamerError) -> float | None:
        """Seconds after which to try again although a reader waits; None: it is the reader's error."""
        if not isinstance(error, CacheError):
            return None
        self._refusals[flight.key] += 1
        return REFUSED_SECONDS if self._refusals[flight.key] <= MAX_REFUSALS else None

    def _missed(self, passenger: Passenger, error: StreamerError, pause: float | None) -> None:
        """A reader that waits gets the error; a look-ahead, or a chunk that found no room, is tried again."""
        session, chunk = passenger.session, passenger.chunk
        if pause is None and session.track.is_wanted(chunk):
            session.fail(error)
            return
        logger.warning("chunk %d of %s is tried again: %s", chunk, session.request.consumer, error)
        if pause is None:
            session.cooling.add(chunk)
            self._loop.call_later(COOLING_SECONDS, self._retry, session, chunk)
        else:
            self._loop.call_later(pause, self._ask_again, session, chunk)

    def _retry(self, session: EngineSession, chunk: int) -> None:
        if chunk in session.cooling:
            session.cooling.discard(chunk)
            self._ask_again(session, chunk)

    def _ask_again(self, session: EngineSession, chunk: int) -> None:
        session.track.lost(chunk)
        self.kick()

    def _lost(self, victims: tuple[bytes, ...]) -> None:
        for key in victims:
            for session in self._sessions.values():
                if (chunk := session.keys.pop(key, None)) is not None:
                    session.track.lost(chunk)
