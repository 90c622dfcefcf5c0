"""Stores: one ranged GET, pinned to a version, over many kinds of url.

base.py             the protocol
obstore_store.py    s3, gs, az, http by obstore (Rust): the hot path
fsspec_store.py     any url that fsspec knows
local_store.py      files
urls, patterns, versions, options, failures     pure parts
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Literal

from streamer.store.base import ObjectStore, StoreStatistics
from streamer.store.local_store import LocalStore
from streamer.store.obstore_clients import make_client
from streamer.store.obstore_store import ObstoreStore
from streamer.store.options import family, translate
from streamer.store.urls import Address, split

__all__ = ["ObjectStore", "StoreStatistics", "open_store"]

_log = logging.getLogger(__name__)

Client = Literal["auto", "obstore", "fsspec"]


def open_store(
    url: str, storage_options: Mapping[str, object] | None = None, *, client: Client = "auto"
) -> ObjectStore:
    """Opens the store that serves `url`'s bucket, container, host or file system.

    Does no I/O: connections are made at the first request, on the loop that makes it.

    Args:
        url: any url below the root; only its root counts.
        storage_options: exactly as fsspec takes them.
        client: "auto" takes obstore where every option has a counterpart, else fsspec (said in the log).

    Raises:
        ConfigError: an empty url or one without a bucket.
    """
    address, options = split(url), dict(storage_options or {})
    if address.scheme == "file":
        return LocalStore()
    store: ObjectStore | None = None
    if client != "fsspec" and family(address.scheme) is not None:
        store = _obstore(address, options, forced=client == "obstore")
    if store is None:
        # Only here: an engine whose stores are all obstore's starts 5 ms sooner.
        from streamer.store.fsspec_store import FsspecStore

        store = FsspecStore(address.root, address.scheme, options)
    return store


def _obstore(address: Address, options: Mapping[str, object], *, forced: bool) -> ObjectStore | None:
    translation = translate(address, options)
    if translation.unknown and not forced:
        _log.warning(
            "%s: read through fsspec, which costs about five times the CPU per request, because obstore has no "
            "counterpart of %s",
            address.root,
            ", ".join(sorted(translation.unknown)),
        )
        return None
    return ObstoreStore(address.root, partial(make_client, address, translation))
