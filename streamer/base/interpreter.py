"""The Python that runs this package in child processes, the descriptors that it finds open, and what is installed."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec

from streamer.errors import ConfigError


def find_interpreter() -> str:
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


@contextlib.contextmanager
def skip_debugger() -> Iterator[None]:
    """Starts interpreters of this package without pydevd, which would put itself before them (debugpy, PyCharm).

    An engine forks and lives on without the trainer: under a debugger it waited for a session that never came.
    """
    pydevd = sys.modules.get("_pydev_bundle.pydev_monkey")
    skip = getattr(pydevd, "skip_subprocess_arg_patch", contextlib.nullcontext)
    with skip():
        yield


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


def require_modules(what: str, extra: str, *modules: str, field: str) -> None:
    """Looks for modules without importing them.

    Args:
        what: the part that needs them, as the beginning of the message.
        extra: the extra that installs them.
        modules: their names.
        field: the argument or setting that asks for it.

    Raises:
        ConfigError: one is missing; names it and the extra.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{what} needs {' and '.join(missing)} in this environment ({sys.prefix}): "
            f"pip install 'streamer-data[{extra}]'",
            field=field,
        )
