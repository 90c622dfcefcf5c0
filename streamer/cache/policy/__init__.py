"""Decides which chunks stay on the disk and which are evicted. Pure and synchronous: no I/O, no clock, no asyncio.

The engine and `tools/planning/simulate.py` use `cache_policy.py`, and the other modules are its parts. The engine, the
rest of `cache/`, `peers/`, `service/history/recorder.py` and `cli/warming.py` use values of those parts, too.
"""
