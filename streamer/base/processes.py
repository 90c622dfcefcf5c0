"""Starting processes: safely next to threads that fork, and without credentials in their environment.

A fork, as torch's DataLoader makes for its workers, copies every open descriptor. A process that is forked while
another program is being started therefore keeps open those ends of pipes that should close: `subprocess.Popen` waits
for one of them, the new program for another.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_starting = threading.RLock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)

# Names of variables that are passed on; those of credentials are not among them.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONHOME", "VIRTUAL_ENV")


@contextmanager
def unforked() -> Iterator[None]:
    """Keeps other threads of this process from forking; `subprocess` itself continues."""
    with _starting:
        yield


def import_paths() -> list[str]:
    """Returns `sys.path` as texts: programs put paths and bytes there, and entries that the interpreter ignores."""
    found: list[object] = [*sys.path]
    return [os.fsdecode(entry) for entry in found if isinstance(entry, str | bytes | os.PathLike)]


def child_environment(settings: dict[str, str]) -> dict[str, str]:
    """The environment for a process that imports the same streamer and the same packages of formats as this one.

    Args:
        settings: additional variables.
    """
    found = {name: value for name, value in os.environ.items() if name in _VARIABLES}
    paths = dict.fromkeys(os.path.abspath(entry) for entry in import_paths())
    return {**found, **settings, "PYTHONPATH": os.pathsep.join(paths)}
