"""Finds and renews credentials that are not among the storage options.

Used by the stores of `store/`, and by `streamer doctor`. `StoreRoot.make_credentials_finder` (`store/root.py`) decides
which buckets need them.

boto_keys.py        keys of AWS
google_tokens.py    tokens of Google
azure_tokens.py     tokens of Azure
key_ring.py         renews them while the last ones are still valid
issuers.py          says why none were given
web_login.py        the login of a web server, from its url or from netrc
"""

from __future__ import annotations

import os
from pathlib import Path


def find_in_home(*names: str) -> Path | None:
    """Returns a path below the home folder, whether or not it exists; None if this user has no home folder.

    A user has none in a container, for example: with a uid that is not in /etc/passwd, and without HOME.

    Args:
        names: folders and the file, from the home folder on. Without names the home folder itself is returned.
    """
    home = os.path.expanduser("~")
    return None if home == "~" else Path(home, *names)
