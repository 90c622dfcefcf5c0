"""Starts processes safely next to threads that fork, as torch's DataLoader does for its workers.

A fork copies every open descriptor. A process that is forked while another program is being started therefore keeps
open those ends of pipes that should close: `subprocess.Popen` waits for one of them, the new program for another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_starting = threading.RLock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)


@contextmanager
def unforked() -> Iterator[None]:
    """Keeps other threads of this process from forking; `subprocess` itself continues."""
    with _starting:
        yield
