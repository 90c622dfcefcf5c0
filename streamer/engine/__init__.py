"""Joins cache and fetch: opens sessions, follows their schedules, and fetches the chunks that they need next.

`service/` runs an engine, `peers/` joins several, and `tools/planning/simulate.py` uses its scheduler. The modules are
listed in `engine.py`.
"""
