"""Makes local paths absolute, so that they mean the same to every process of a machine, and finds the user's home.

Commands, `shards/` and the options of a dataset make what a user gives absolute. `store/credentials/` looks for the
files of logins and keys in the home folder, and `streamer doctor` checks that there is one.
"""

from __future__ import annotations

import os
from pathlib import Path


def absolute(url: str) -> str:
    """Returns a local path as an absolute one, with the slash at its end if it has one.

    A url with `://`, `file://` included, only gets its scheme in lower case.
    """
    scheme, separator, rest = url.partition("://")
    if separator:
        return f"{scheme.lower()}://{rest}"
    # abspath drops the slash that distinguishes a folder from an object.
    return os.path.abspath(url).rstrip("/") + ("/" if url.endswith("/") else "")


def find_in_home(*names: str) -> Path | None:
    """Returns a path below the home folder, whether or not it exists; None if this user has no home folder.

    A user has none in a container, for example: with a uid that is not in /etc/passwd, and without HOME.

    Args:
        names: folders and the file, from the home folder on. Without names the home folder itself is returned.
    """
    home = os.path.expanduser("~")
    return None if home == "~" else Path(home, *names)
