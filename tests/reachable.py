"""Ends with 0 if a url answers at all, through a proxy if need be: python reachable.py URL. For the Makefile."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

_SECONDS = 3.0


def reachable(url: str) -> bool:
    """Returns whether an HTTP server answers there, whatever it says."""
    try:
        urllib.request.urlopen(url, timeout=_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(0 if reachable(sys.argv[1]) else 1)
