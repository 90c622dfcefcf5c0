"""The environment of the engine's own processes: variables that locate programs and libraries, but no credentials."""

from __future__ import annotations

import os
import sys

# Names of variables that are passed on; those of credentials are not among them.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONHOME", "VIRTUAL_ENV")


def child_environment(settings: dict[str, str]) -> dict[str, str]:
    """The environment for a process that imports the same streamer and the same packages of formats as this one.

    Args:
        settings: additional variables.
    """
    found = {name: value for name, value in os.environ.items() if name in _VARIABLES}
    paths = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)
    return {**found, **settings, "PYTHONPATH": os.pathsep.join(paths)}
