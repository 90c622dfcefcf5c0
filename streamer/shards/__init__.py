"""Writes datasets as shards that every tool reads: `streamer pack`.

Pure:
values.py      a sample as the files of a tar
plan.py        the order of the samples, cut into shards
job.py         the identity of a pack, and the names of the files that it writes

One shard:
spool.py       its temporary file
receipts.py    the facts about a finished shard
reading.py     the samples of a source, some at a time; blocks are decoded here
outputs/       the outputs of a shard: a tar, Parquet, or tokens
annotations.py the table that is joined to samples
sources.py     where samples come from: ranges of objects, or a dataset of the loader
task.py        reads samples, writes a shard, uploads it, writes its receipt

All of them:
destination.py the content of the destination, and what is written there
finish.py      checks the shards, and writes the manifest
settle.py      does so even if another pack of the same job is writing
prepared.py    a pack of a dataset: index, plan, run
progress.py    progress of a pack
pack.py        `streamer.pack`; shards of samples that a program makes
verify.py      `streamer verify`
"""
