"""Fetches chunks and objects from stores, with many ranged GETs at once, and repeats those that fail.

Used by the engine and its fetch processes (`engine/`), and by all that reads or writes objects otherwise (`indexing/`,
`recode/`, `shards/`). Peers (`peers/`) share its gates, memory limits, hedges, pauses and clock. The service
(`service/`) uses its gate, memory limit and counters, `tools/` its ranges, tasks (`executors/`) its rule of what is
worth a repetition.

Decisions without I/O:
ranges.py           which ranges a chunk needs
concurrency.py      how many requests at once
pacing.py           how many requests per second, if the store limits them
hedge.py            whether a slow request gets a duplicate
retry.py            whether and when to try again

State on the event loop:
fair_gate.py        which request is next, bounded in requests and bytes
memory_budget.py    how many bytes at once, and the buffers for them
presence_clock.py   time that passes only while this process runs, with alarms and deadlines
endpoint.py         what the requests to one bucket or host share, and whether it serves at all
statistics.py       what is counted

From one request to a chunk:
request.py          one GET with deadlines, and one try: a GET with at most one duplicate
transfer.py         one range, or a call as a whole, over several tries
fetcher.py          chunks, small objects and listings
fetcher_set.py      a fetcher for each set of storage options
"""

from __future__ import annotations

from streamer.fetch.fair_gate import Due
from streamer.fetch.fetcher import Fetched, Fetcher
from streamer.fetch.statistics import FetchStatistics

__all__ = ["Due", "FetchStatistics", "Fetched", "Fetcher"]
