"""Indexes a dataset in tasks, on processes or a cluster: for `streamer pack` and `streamer index --executor`.

source.py      the manifest of a dataset: indexed, or read from a url
tasks.py       a large prefix listed by ranges of keys, and containers indexed, in tasks
"""
