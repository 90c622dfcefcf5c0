"""Makes manifests: lists the objects of a dataset, finds the samples in them, and writes the manifest.

The engine indexes for trainers (`engine/manifests/manifests.py`), `streamer index --executor` and `streamer pack` index
in tasks on processes or a cluster, and joins arrange a dataset in the order of another one (`loader/members/joins.py`).

build.py           all steps of an index, in order
listed_rows.py     the objects below the urls, in an order of their own, and their format
survey.py          which of them contain samples, as the format says
known.py           samples of unchanged objects, from earlier manifests
container_rows.py  the samples of one container, cut into chunks
index_log.py       the findings of an unfinished index, on disk
rows.py            the findings as rows of a manifest
publish.py         rows to a manifest's folder
tasks.py           a large prefix listed, and containers indexed, in tasks
source.py          the manifest of a dataset: indexed in tasks, or read from a url
arrange.py         the manifest of a dataset in the order of another one
"""
