"""Starting processes: safely next to threads that fork, and without credentials in their environment.

A fork, as torch's DataLoader makes for its workers, copies every open descriptor. A process that is forked while
another program is being started therefore keeps open those ends of pipes that should close: `subprocess.Popen` waits
for one of them, the new program for another.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from streamer.errors import ConfigError

_starting = threading.RLock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)

# Names of variables that are passed on; those of credentials are not among them.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONHOME", "VIRTUAL_ENV")


@contextmanager
def unforked() -> Iterator[None]:
    """Keeps other threads of this process from forking; `subprocess` itself continues."""
    with _starting:
        yield


def interpreter() -> str:
    """Returns the Python that runs this package in other processes.

    Raises:
        ConfigError: this program is frozen, or embeds Python, so that there is none.
    """
    if getattr(sys, "frozen", False):
        raise _no_interpreter(f"this program is frozen: {sys.executable} runs the program again and no module")
    if sys.executable:
        return sys.executable
    # A program that embeds Python may leave it empty, or None.
    version = "python{}.{}".format(*sys.version_info)
    for folder in (
        sysconfig.get_path("scripts"),
        os.path.join(sys.exec_prefix, "bin"),
        sysconfig.get_config_var("BINDIR"),
    ):
        if folder and os.access(candidate := os.path.join(folder, version), os.X_OK):
            return candidate
    raise _no_interpreter(f"sys.executable is {sys.executable!r}, and there is no {version} in {sys.exec_prefix}/bin")


def _no_interpreter(reason: str) -> ConfigError:
    return ConfigError(
        f'no further Python can be started: {reason}; StreamingDataset(engine="inline") with num_workers=0 needs '
        "none, or set sys.executable to a Python that has streamer",
        field="sys.executable",
    )


def open_standard_descriptors() -> None:
    """Opens those of the descriptors 0, 1 and 2 that are closed on /dev/null.

    Otherwise the next socket or memory file of this process would get the number, and what a library prints would be
    written to it.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return
        # Like those of a shell, for programs that this one starts.
        os.set_inheritable(descriptor, True)


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
