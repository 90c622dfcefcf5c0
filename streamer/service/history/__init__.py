"""Keeps what the curves of the page show: a few series over time, in under 1 MB, for `/history.json`.

rings.py      means of the series in bins of 2 s to 2.3 h
history.py    series, ranks, jobs and marks (restarts, warnings, epochs); as JSON
recorder.py   looks at the engine once a second, and keeps the file that outlives a restart
"""
