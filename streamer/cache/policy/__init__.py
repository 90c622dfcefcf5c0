"""Decides which chunks stay on the disk and which are evicted. Pure and synchronous: no I/O, no clock, no asyncio.

The engine uses `cache_policy.py`; the other modules are its parts. Their values are also used by the rest of `cache/`,
by `peers/` and by `tools/planning/simulate.py`.
"""
