"""Makes records of the blocks of fetched chunks, in processes of their own: the recoders.

The engine (`engine/`) uses it for chunks and manifests, tasks of `indexing/` and `shards/` for work without an engine.
`streamer doctor` (`tools/doctor/`) shows what the sandbox cannot restrict.

pool.py       starts and ends recoders, and gives each one job after the other
__main__.py   the program that a recoder runs
sandbox.py    restricts a recoder to reading libraries
messages.py   the messages between engine and recoder, which are no pickles
shared.py     the memory that engine and recoder share, for jobs and records
work.py       the work on a job, which tasks of `streamer pack` and `index --executor` call in their own process
results.py    checks of the result, and errors that name object and range
annotations.py     tables of files of labels and boxes, which a recoder parses
recoded_chunks.py  chunks kept in memory, for looking at single samples
"""
