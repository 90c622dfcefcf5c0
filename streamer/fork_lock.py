"""Processes that are started beside threads that fork, as torch's DataLoader does for its workers.

A fork copies every open descriptor. So whoever is forked while another program is being started holds the ends of
pipes that were to close, as long as it lives: `subprocess.Popen` waits for one of them, the new program for another.
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
    """No thread of this process forks meanwhile: it waits. `subprocess` itself goes on."""
    with _starting:
        yield
