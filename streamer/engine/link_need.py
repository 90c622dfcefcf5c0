"""Measures how many bytes must be on their way to keep the link busy: its rate times its delay. Pure, without a clock.

`scheduler.py` and `tools/planning/simulate.py` tell it of each chunk. The rate is that of the best of the last
intervals. The delay is the time of a chunk that has the link almost for itself. (Beside many others a chunk takes
longer because of them, and the rate times that is always the number of bytes on their way, by Little's law.) On a full
link there is no such chunk. So the link is probed: for the time of a few chunks no more than two are asked for at once.
After a good probe the next one follows in a minute at the earliest, and readers have what was asked for before.

Source: Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016 (ProbeRTT).
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

# An interval ends when it is this long and this many chunks have come.
INTERVAL_SECONDS = 0.25
INTERVAL_CHUNKS = 8
# The rate is the highest of so many intervals, without the highest tenth: chunks that waited for a core come at once.
INTERVALS = 64
PEAK_SHARE = 0.9
# A chunk has the link almost for itself while at most this many are on their way.
FEW_IN_FLIGHT = 2
# The delay is the median of the last chunks that had it. With three at least a probe would take twice as long.
SAMPLES = 5
LEAST_SAMPLES = 2
# A delay is measured again after this time, in which a link changes little.
VALID_SECONDS = 60.0
# A probe counts down from this: by one for each chunk that comes while the link is almost empty, by two if that chunk
# had the link for itself. So it takes the last two chunks of the full link and two more.
PROBE_COUNT = 6
# A probe that has measured too few delays is repeated after this time.
REPEAT_SECONDS = 10.0
# A probe ends by itself after twice the time that the bytes in flight take, and this.
SLACK_SECONDS = 1.0
# The need is half more than rate times delay, because latencies scatter, and some chunks in flight have come in part.
MARGIN = 1.5


class LinkNeed:
    """Follows the chunks on their way, and measures rate and delay. Times (`now`) are seconds of the loop's clock.

    Attributes:
        probe_ends_at: time at which the running probe ends by itself, in the past if none runs.
    """

    def __init__(self) -> None:
        # A crowd begins when a chunk is asked for beside FEW_IN_FLIGHT or more others. Of each chunk on its way:
        # when it was asked for, and how many crowds had begun by then, or -1 if it began one. If no other has begun
        # when it comes, it has had the link almost for itself.
        self._begun: dict[bytes, tuple[float, int]] = {}
        self._crowds = 0
        self._rates: deque[float] = deque(maxlen=INTERVALS)
        self._seconds: deque[float] = deque(maxlen=SAMPLES)
        self._chunk_bytes = 0
        self._interval_begun = 0.0
        self._interval_bytes = 0
        self._interval_chunks = 0
        self._probe_count = 0
        self._next_probe_at = 0.0
        self.probe_ends_at = 0.0

    def __repr__(self) -> str:
        return f"LinkNeed(need_bytes={self.need_bytes}, in_flight={len(self._begun)})"

    @property
    def need_bytes(self) -> int | None:
        """Bytes that should be on their way, or None while that is not known."""
        if not self._rates or len(self._seconds) < LEAST_SAMPLES:
            return None
        return int(MARGIN * self._rate * median(self._seconds))

    @property
    def _rate(self) -> float:
        """Rate of the link in bytes per second; see `PEAK_SHARE`."""
        return sorted(self._rates)[math.ceil(PEAK_SHARE * len(self._rates)) - 1]

    def begin(self, key: bytes, now: float) -> None:
        """Records that a chunk is asked for."""
        if not self._begun:
            self._begin_interval(now)
        uncrowded = len(self._begun) < FEW_IN_FLIGHT
        self._crowds += not uncrowded
        self._begun[key] = (now, self._crowds if uncrowded else -1)

    def end(self, key: bytes, now: float, size_bytes: int) -> None:
        """Records that a chunk has come; `size_bytes` is 0 if its fetch has failed."""
        begun, crowds = self._begun.pop(key, (now, -1))
        if not size_bytes:
            return
        self._chunk_bytes = max(self._chunk_bytes, size_bytes)
        self._interval_bytes += size_bytes
        self._interval_chunks += 1
        seconds = now - self._interval_begun
        if seconds >= INTERVAL_SECONDS and self._interval_chunks >= INTERVAL_CHUNKS:
            self._rates.append(self._interval_bytes / seconds)
            self._begin_interval(now)
        if crowds == self._crowds:
            self._seconds.append(now - begun)
            if len(self._seconds) >= LEAST_SAMPLES:
                self._next_probe_at = now + VALID_SECONDS
        if now >= self.probe_ends_at:
            self._probe_count = 0
        if self._probe_count and len(self._begun) < FEW_IN_FLIGHT:
            self._probe_count = max(0, self._probe_count - (2 if crowds == self._crowds else 1))

    def holds_back(self, now: float, *, urgent: bool) -> bool:
        """Returns whether the next chunk must wait until another one has come, because of a probe.

        Starts a probe if one is due and the link is full. While a probe runs, a chunk waits if FEW_IN_FLIGHT or more
        are on their way. An `urgent` chunk waits only if exactly so many are, because these are measured.
        """
        in_flight = len(self._begun)
        if in_flight > FEW_IN_FLIGHT and self._rates and now >= max(self._next_probe_at, self.probe_ends_at):
            seconds = (in_flight + PROBE_COUNT) * self._chunk_bytes / self._rate
            self._probe_count = PROBE_COUNT
            self._next_probe_at = now + REPEAT_SECONDS
            self.probe_ends_at = now + SLACK_SECONDS + 2 * seconds
        if not self._probe_count or now >= self.probe_ends_at:
            return False
        return in_flight == FEW_IN_FLIGHT or (in_flight > FEW_IN_FLIGHT and not urgent)

    def _begin_interval(self, now: float) -> None:
        self._interval_begun = now
        self._interval_bytes = 0
        self._interval_chunks = 0
