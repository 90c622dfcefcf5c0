"""Keeps what the curves of the page show: a few series over time, in under 1 MB, for `/history.json`.

rings.py      means of the series in bins of 2 s to 2.3 h   marks.py      restarts, warnings, epochs
history.py    series, ranks, jobs and marks; as JSON       recorder.py   looks at the engine once a second
saved.py      the file that outlives a restart
"""
