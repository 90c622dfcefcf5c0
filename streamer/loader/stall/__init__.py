"""Finds out why a trainer waits for data, and says what to do about it.

stats.py     counts and times of a loader
report.py    compares two snapshots of them: the stall report
advice.py    finds the bottleneck, and the advice against it; for a growing dataset, whether its link suffices
reporter.py  logs a report at intervals, and sends it to the engine

Used by `loader/dataloader.py`, `loader/loader_views.py` and `loader/epoch.py`; `loader/feed/` and `loader/kinds/` make
some of the statistics.
"""
