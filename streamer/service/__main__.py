"""`python -m streamer.service READY_FD`: detaches at once, then runs the engine that a client starts for itself."""

from __future__ import annotations

import os
import signal
import sys

from streamer.service.startup_timing import StartupTiming


def main() -> int:
    """Runs the engine in a child of this process; see `embedded`."""
    timing = StartupTiming.begin_with_process()
    timing.end("interpreter")
    # Signals that the trainer ignores or blocks reach this process.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # The fork comes before the other imports: it copies the table of each page that is mapped by then.
    if os.fork():
        # The client waits only for this half; the engine is then a child of init, never a zombie of a trainer.
        os._exit(0)
    from streamer.service.embedded import serve

    return serve(int(sys.argv[1]), timing)


if __name__ == "__main__":
    sys.exit(main())
