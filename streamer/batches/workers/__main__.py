"""Runs one worker as a program: `python -m streamer.batches.workers CONTEXT STATUS_PAGE CHANNEL PARENT NUMBER WORKERS`.

`SpawnedProcess` (`batches/workers/handle.py`) starts it where workers cannot be forked. It is a program of its own,
because multiprocessing would import the trainer's `__main__` again.

CONTEXT, STATUS_PAGE and CHANNEL are file descriptors that the program inherits: a memory file with a `ProcessContext`,
the status page, and the worker's end of its socket. PARENT is the pid of the rank, NUMBER the worker's row in the
status page, and WORKERS the number of rows.
"""

from __future__ import annotations

import sys

import msgspec

from streamer.batches.workers import worker
from streamer.batches.workers.fork_protocol import ProcessContext, read_memory_file


def main() -> None:
    """Serves the rank as the worker of the command line, until the rank closes its end of the socket."""
    context, status_page, channel, parent, number, workers = map(int, sys.argv[1:])
    worker.end_with_parent(parent)
    worker.enter_context(msgspec.msgpack.decode(read_memory_file(context), type=ProcessContext))
    worker.serve(number, workers, status_page, channel)


if __name__ == "__main__":
    main()
