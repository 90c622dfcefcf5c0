"""Indexes a dataset in tasks, on processes or a cluster: for `streamer pack` and `streamer index --on`.

source.py      the manifest of a dataset: indexed, or read from a url
listing.py     a large prefix listed in tasks; key_ranges.py: its parts
containers.py  containers indexed in tasks
stores.py      the stores with which a task lists and reads
"""
