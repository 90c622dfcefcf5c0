"""A worker process of its own: `python -m streamer.batches.workers CONTEXT STATUS_PAGE CHANNEL PARENT NUMBER WORKERS`.

The first three arguments are descriptors. Workers start this way where they cannot be forked: by subprocess, because
multiprocessing would import the trainer's `__main__` again.
"""

from __future__ import annotations

import sys

import msgspec

from streamer.batches.workers import worker
from streamer.batches.workers.fork_protocol import ProcessContext, read_memory_file


def main() -> None:
    """Runs the worker of the command line."""
    context, status_page, channel, parent, number, workers = map(int, sys.argv[1:])
    worker.end_with_parent(parent)
    worker.enter_context(msgspec.msgpack.decode(read_memory_file(context), type=ProcessContext))
    worker.serve(number, workers, status_page, channel)


if __name__ == "__main__":
    main()
