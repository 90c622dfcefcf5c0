"""Files with secrets that the configuration names: one that is replaced has to be read again.

kubelet replaces the files of a mounted Secret by renaming a link, a minute after the Secret has changed, without a
signal: a service that read them only at its start would go on with revoked keys.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

# kubelet itself looks once a minute.
LOOK_SECONDS = 5.0

_Stamp = tuple[int, int, int] | None


async def changed(files: Sequence[Path]) -> None:
    """Waits until one of the files was replaced, removed or created since the call."""
    before = {path: _stamp(path) for path in files}
    while all(_stamp(path) == stamp for path, stamp in before.items()):  # noqa: ASYNC110 - kubelet tells nothing
        await asyncio.sleep(LOOK_SECONDS)


def _stamp(path: Path) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
