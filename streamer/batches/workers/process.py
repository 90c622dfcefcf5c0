"""Worker processes from the side of the rank."""

from __future__ import annotations

import os

from streamer.base.child import Child, absolute_import_paths, whole_environment
from streamer.batches.workers.fork_protocol import ProcessContext, memory_file


class SpawnedProcess(Child):
    """A worker that is a new interpreter. Start it on a thread that runs as long as it (PR_SET_PDEATHSIG).

    Args:
        number: number of the worker.
        workers: number of workers.
        descriptors: its status page and its channel.
    """

    refused = ""
    ended_with_server = False

    def __init__(self, number: int, workers: int, descriptors: list[int]) -> None:
        context = memory_file("streamer-context", current_context())
        try:
            super().__init__(
                "streamer.batches.workers",
                [context, *descriptors],
                [os.getpid(), number, workers],
                environment=whole_environment({}),
                own_session=False,
                has_output=True,
            )
        finally:
            os.close(context)


def current_context() -> ProcessContext:
    """Returns working directory, `sys.path` ("" is the current directory) and environment of this process."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = ""
    return ProcessContext(os.fsencode(folder), list(map(os.fsencode, absolute_import_paths())), dict(os.environb))
