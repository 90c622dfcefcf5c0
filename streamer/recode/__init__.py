"""Makes records of blocked chunks in processes of their own, between fetch and publish.

pool.py       one process as the engine sees it: start, job, answer, end; the number of processes, and the next job
shared.py     the memory in which bytes are passed
messages.py   the messages between the two; nothing is unpickled
__main__.py   the process; results.py the result
work.py       the work on a job, also without another process: for tasks of `streamer pack` and `index --executor`
annotations.py     files of labels and boxes, parsed in a recoder
recoded_chunks.py  chunks in memory, for looking at single samples
"""
