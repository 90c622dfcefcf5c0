"""Puts an object on a web server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import BinaryIO

from streamer.errors import StoreError

# The answers to an upload below a folder that is not there.
_NO_FOLDER = (404, 409)
# The answer to MKCOL where the folder is there already.
_IS_THERE = 405


async def upload(url: str, prefix: str, content: BinaryIO, ask: Callable[..., Awaitable[object]]) -> None:
    """Sends the bytes; makes the folders above the object where the server asks for them (WebDAV).

    Args:
        url: url of the object.
        prefix: beginning of the urls of its server.
        content: bytes, from the beginning.
        ask: makes a request, given a url, `method` and `content`.

    Raises:
        StoreError: the server refuses.
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
