"""How a rank's batches are fed: by whom, how far ahead, through what memory."""

from __future__ import annotations

import threading

import msgspec

from streamer.loader.keeper import RingRules
from streamer.loader.pool import Crew


class FeedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the feeder works.

    Attributes:
        crew: the workers.
        span: batches that may be begun and not yet taken.
        ring: its budget, and what is done with it.
        planning: held while the prepared stream is used.
        timeout_seconds: a sample may take this long; 0: any time.
    """

    crew: Crew
    span: int
    ring: RingRules
    planning: threading.Lock
    timeout_seconds: float = 0.0
