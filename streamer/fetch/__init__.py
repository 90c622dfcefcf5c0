"""Many ranged GETs: as fast as the link, whatever the store does.

plan.py        which ranges a chunk needs (pure)
window.py      how many at once (pure)
pacing.py      how many per second, where a store limits that (pure)
retry.py       whether and when again (pure)
gate.py        who is next, bounded in requests and bytes
transfer.py    one range over tries
fetcher.py     chunks
"""

from __future__ import annotations

from streamer.fetch.fetcher import Fetched, Fetcher
from streamer.fetch.gate import Due
from streamer.fetch.statistics import FetchStatistics

__all__ = ["Due", "FetchStatistics", "Fetched", "Fetcher"]
