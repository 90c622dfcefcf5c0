"""Writes an object to a web server by PUT; makes folders on a WebDAV server. Used by `store/curl/store.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import BinaryIO

from streamer.errors import StoreError

# Statuses of a PUT below a folder that does not exist.
_NO_FOLDER = (404, 409)
# Status of MKCOL for a folder that exists.
_IS_THERE = 405


async def upload(url: str, prefix: str, content: BinaryIO, ask: Callable[..., Awaitable[object]]) -> None:
    """Writes an object. If the server answers that its folder is missing, makes the folders and writes again (WebDAV).

    Args:
        url: url of the object.
        prefix: beginning of the urls of its server, with a slash.
        content: content of the object, a file that can be read twice.
        ask: makes a request, given a url, `method` and `content`; raises StoreError for a refusal.

    Raises:
        StoreError: the server refuses, or a request fails.
    """
    try:
        await ask(url, method="PUT", content=content)
    except StoreError as refusal:
        if refusal.details.get("status") not in _NO_FOLDER:
            raise
    else:
        return
    steps = url.removeprefix(prefix).split("/")[:-1]
    for count in range(1, len(steps) + 1):
        try:
            await ask(f"{prefix}{'/'.join(steps[:count])}/", method="MKCOL")
        except StoreError as refusal:
            if refusal.details.get("status") != _IS_THERE:
                raise
    await ask(url, method="PUT", content=content)
