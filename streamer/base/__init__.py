"""Holds what every other room may use: the operating system, processes, threads, logs, hashes, logins in urls.

It imports nothing of the other rooms, only `errors.py`, `config.py` and `version.py`.
"""
