"""The file in which the history of an engine outlives its end: the page shows what was before a restart."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from streamer.service.history.history import History

logger = logging.getLogger(__name__)

# Begins like the marker of the cache folder: earlier versions pass over it.
FILE_NAME = "streamer-cache.history"
_MAX_BYTES = 2 << 20


def read_history(path: Path, history: History) -> bool:
    """Takes over the history of the engine that had this cache folder before; returns whether there was one."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        history.restore(content)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        logger.info("the curves begin anew: %s is not used: %s", path, error)
        return False
    return True


def write_history(path: Path, content: bytes) -> None:
    """Writes the file anew, readable by this user only; without room for it the curves end with the engine."""
    unfinished = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(unfinished, path)
    except OSError as error:
        logger.info("the curves will not outlive this engine: %s: %s", path, error.strerror)
        with contextlib.suppress(OSError):
            unfinished.unlink()
