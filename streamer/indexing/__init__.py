"""Indexes a dataset in tasks, on processes or a cluster: for `streamer pack` and `streamer index --on`.

source.py      the manifest of a dataset: indexed, or read from a url
listing.py     a large prefix listed in tasks; key_ranges.py: the parts of it
containers.py  containers indexed in tasks
stores.py      what a task lists and reads with
"""
