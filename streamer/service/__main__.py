"""Runs the engine that a client starts for itself, as `python -m streamer.service READY_FD`; detaches from it at once.

`client/launcher.py` starts this program. The launcher writes the engine's settings to stdin, and reads from READY_FD
when the engine is ready (`embedded.serve`).
"""

from __future__ import annotations

import os
import signal
import sys

from streamer.service.startup_timing import StartupTiming


def main() -> int:
    """Forks, and runs the engine in the child; the parent ends at once.

    Returns:
        The exit status of an engine that ended by an error.
    """
    timing = StartupTiming.begin_with_process()
    timing.end("interpreter")
    # This process has inherited signals that the trainer ignores or blocks; it must get them.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # The fork comes before the other imports: it copies the table of each page that is mapped by then.
    if os.fork():
        # The client waits only for this parent. The engine becomes a child of init, never a zombie of a trainer.
        os._exit(0)
    from streamer.service.embedded import serve

    return serve(int(sys.argv[1]), timing)


if __name__ == "__main__":
    sys.exit(main())
