"""Urls that mean the same to every process of a machine, whatever its working directory."""

from __future__ import annotations

import os


def absolute(url: str) -> str:
    """Returns a local path as an absolute one, and another url with its scheme in lower case."""
    scheme, separator, rest = url.partition("://")
    if separator:
        return f"{scheme.lower()}://{rest}"
    # abspath drops the slash that distinguishes a folder from an object.
    return os.path.abspath(url).rstrip("/") + ("/" if url.endswith("/") else "")
