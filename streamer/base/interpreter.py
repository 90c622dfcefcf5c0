"""Finds the Python for child processes, and opens the standard descriptors of this one.

What starts processes uses it (`base/child.py`, `client/launcher.py`, `batches/workers/fork_server.py`), and `streamer
doctor` looks for the Python with it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator

from streamer.errors import ConfigError


def find_interpreter() -> str:
    """Returns the path of the Python that runs this package in other processes.

    Raises:
        ConfigError: this program is frozen, or it embeds Python and no Python of its version is found.
    """
    if getattr(sys, "frozen", False):
        raise _no_interpreter(f"this program is frozen: {sys.executable} runs the program again and no module")
    if sys.executable:
        return sys.executable
    # A program that embeds Python may leave sys.executable empty, or None.
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


@contextlib.contextmanager
def skip_debugger() -> Iterator[None]:
    """Keeps the debugger pydevd (debugpy, PyCharm) out of the interpreters that are started inside a `with`.

    pydevd changes the command of each Python that the debugged process starts. The engine lives on without the
    trainer: under a debugger it waited for a debug session that never came.
    """
    pydevd = sys.modules.get("_pydev_bundle.pydev_monkey")
    skip = getattr(pydevd, "skip_subprocess_arg_patch", contextlib.nullcontext)
    with skip():
        yield


def open_standard_descriptors() -> None:
    """Opens /dev/null in place of each of the descriptors 0, 1 and 2 that is closed.

    Otherwise the next socket or memory file of this process would get that number, and what a library prints would be
    written to it.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return
        # Programs that this one starts inherit it, as they inherit standard descriptors from a shell.
        os.set_inheritable(descriptor, True)
