"""Runs an engine behind a unix socket: starts and ends it, admits clients, answers them, and reports over HTTP.

`streamer serve` runs it as a service of its own, `client/launcher.py` starts it as a process for a training job, and
`client/in_process.py` in the trainer's own process.
"""
