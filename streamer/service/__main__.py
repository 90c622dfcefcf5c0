"""`python -m streamer.service READY_FD`: detaches at once, then runs the engine that a client wants for itself."""

from __future__ import annotations

import os
import sys

from streamer.service.phases import Phases


def main() -> int:
    """Runs the engine in a child of this process; see `embedded`."""
    phases = Phases.of_process()
    phases.end("interpreter")
    # Before the other imports: a fork copies the table of each page that is mapped by then.
    if os.fork():
        # The starter waits for this half; the engine is nobody's child, so it never becomes a zombie of a trainer.
        os._exit(0)
    from streamer.service.embedded import serve

    return serve(int(sys.argv[1]), phases)


if __name__ == "__main__":
    sys.exit(main())
