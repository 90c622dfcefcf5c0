"""Urls that mean the same to every process of a machine, whatever folder it runs in."""

from __future__ import annotations

import os


def absolute(url: str) -> str:
    """A local path from the root on; another url with its scheme in lower case."""
    scheme, separator, rest = url.partition("://")
    if separator:
        return f"{scheme.lower()}://{rest}"
    # abspath drops the slash that tells a folder from an object.
    return os.path.abspath(url).rstrip("/") + ("/" if url.endswith("/") else "")
