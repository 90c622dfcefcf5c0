"""Local paths that mean the same to every process of a machine, and the home folder of this user."""

from __future__ import annotations

import os
from pathlib import Path


def absolute(url: str) -> str:
    """Returns a local path as an absolute one, and another url with its scheme in lower case."""
    scheme, separator, rest = url.partition("://")
    if separator:
        return f"{scheme.lower()}://{rest}"
    # abspath drops the slash that distinguishes a folder from an object.
    return os.path.abspath(url).rstrip("/") + ("/" if url.endswith("/") else "")


def find_in_home(*names: str) -> Path | None:
    """Returns the path of a file in the home folder; None where this user has none.

    That is a user in a container with any uid, no HOME and no entry in /etc/passwd.
    """
    home = os.path.expanduser("~")
    return None if home == "~" else Path(home, *names)
