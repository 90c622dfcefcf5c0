"""Writes datasets as shards that every tool reads: `streamer pack`.

Pure:
tar.py         one tar, header by header; tells where its samples are
values.py      a sample as the files of a tar
plan.py        the order of the samples, cut into shards
job.py         what is packed, and the names of what it writes

One shard:
spool.py       its temporary file
receipts.py    what is known of a shard that is done
reading.py     the samples of a source, some at a time; blocks are decoded here
outputs/       what a shard is written as: a tar, Parquet, or tokens
annotations.py the table that is joined to samples
task.py        reads samples, writes a shard, uploads it, writes its receipt

All of them:
destination.py what is there, and what is put there
iterable.py    shards of samples that a program makes
finish.py      checks what is there, and writes the manifest
settle.py      does so also where another pack of the same job writes
prepared.py    a pack of a dataset: index, plan, run
progress.py    how far it is
pack.py        `streamer.pack`
verify.py      `streamer verify`
"""
