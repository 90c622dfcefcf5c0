"""Makes records of blocked chunks in processes of their own, between fetch and publish.

pool.py       how many processes there are, and which job is next
process.py    one process from the side of the engine: start, job, answer, end
shared.py     the memory through which bytes go to and fro
messages.py   what the two tell each other; nothing is unpickled
__main__.py   the process; work.py what it does with a job; results.py what comes of it
in_process.py the same without another process, for tasks of `streamer pack` and `streamer index --on`
recoded_chunks.py  chunks in memory, for looking at single samples
"""
