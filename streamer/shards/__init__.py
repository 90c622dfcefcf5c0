"""Writes datasets as shards that other tools read: tars, Parquet or tokens.

The package offers it as `streamer.pack`, and `cli/` as the commands `streamer pack` and `streamer verify`.

Without I/O:
values.py      values of the fields of a sample, and the files of a tar that they become
plan.py        the order of the samples, cut into shards
job.py         the identity of a pack, and the names of the files that it writes

For one shard:
spool.py       makes its temporary file
receipts.py    facts about a finished shard
reading.py     reads samples of a source by ranges of its objects, and decodes blocks
outputs/       write the file of a shard: a tar, Parquet, or tokens
annotations.py tables of annotations that are joined to samples
sources.py     give the samples: from ranges of objects, or from a dataset of the loader
task.py        reads samples, writes a shard, uploads it, writes its receipt

For a whole pack:
destination.py reads and writes the objects at the destination
finish.py      checks the shards, and writes the manifest
settle.py      does so even if another pack of the same job is writing
prepared.py    indexes a dataset, plans its shards, and runs the pack
progress.py    progress of a pack
pack.py        `streamer.pack`, and shards of samples that a program makes
verify.py      compares shards with what a pack wrote
"""
