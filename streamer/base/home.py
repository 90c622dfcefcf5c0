"""The home folder of this user, who may have none: in a container with any uid, no HOME and no entry in /etc/passwd."""

from __future__ import annotations

import os
from pathlib import Path


def find_in_home(*names: str) -> Path | None:
    """Returns the path of a file in the home folder; None where this user has no home folder."""
    home = os.path.expanduser("~")
    return None if home == "~" else Path(home, *names)
