"""Keeps what the curves of a service's page show: a few series over time, in under 1 MB of memory.

`service/lifecycle.py` starts it where a service has a page, and `service/web.py` answers `/history.json` from it.

rings.py      keeps means of the series in bins of 2 s to 2.3 h
history.py    keeps series, ranks, jobs and marks (restarts, warnings, epochs), and returns them as JSON
recorder.py   looks at the engine once a second, and writes the file by which the history outlives a restart
"""
