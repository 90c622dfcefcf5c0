"""Stores: one ranged GET, pinned to a version, over many kinds of url.

base.py             the protocol
curl_store.py       s3 and http by libcurl: the hot path where cores are few
curl_handle.py      one request of it; curl_access.py, boto_keys.py, signature.py: how it gets there
curl_multi.py       many requests of it on an event loop
obstore_store.py    s3, gs, az, http by obstore (Rust)
fsspec_store.py     any url that fsspec knows
local_store.py      files
urls, patterns, versions, options, failures     pure parts
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import partial
from typing import Literal

from streamer.cgroup import usable_cores
from streamer.store.base import ObjectStore, StoreStatistics
from streamer.store.local_store import LocalStore
from streamer.store.options import family, translate
from streamer.store.urls import Address, split

__all__ = ["ObjectStore", "StoreStatistics", "open_store"]

_log = logging.getLogger(__name__)

Client = Literal["auto", "curl", "obstore", "fsspec"]
# libcurl costs half of what obstore does, but on one core: up to so many that core is worth more than its ceiling
# (about 2 GB/s, with TLS 1.3; machines with more cores have faster links).
_CURL_CORES = 15
_CURL_FAMILIES = ("s3", "http")


def open_store(
    url: str, storage_options: Mapping[str, object] | None = None, *, client: Client = "auto"
) -> ObjectStore:
    """Opens the store that serves `url`'s bucket, container, host or file system.

    Does no I/O: connections are made at the first request, on the loop that makes it.

    Args:
        url: any url below the root; only its root counts.
        storage_options: exactly as fsspec takes them.
        client: "auto" takes obstore where every option has a counterpart, else fsspec (said in the log); where cores
            are few, libcurl reads instead of obstore from s3 and http (on Linux). A name takes that one.

    Raises:
        ConfigError: an empty url or one without a bucket.
    """
    address, options = split(url), dict(storage_options or {})
    if address.scheme == "file":
        return LocalStore()
    store: ObjectStore | None = None
    if client != "fsspec" and family(address.scheme) is not None:
        store = _native(address, options, client)
    if store is None:
        # Only here: an engine whose stores are all obstore's starts 5 ms sooner.
        from streamer.store.fsspec_store import FsspecStore

        store = FsspecStore(address.root, address.scheme, options)
    return store


def _native(address: Address, options: Mapping[str, object], client: Client) -> ObjectStore | None:
    translation = translate(address, options)
    if translation.unknown and client == "auto":
        _log.warning(
            "%s: read through fsspec, which costs about five times the CPU per request, because obstore has no "
            "counterpart of %s",
            address.root,
            ", ".join(sorted(translation.unknown)),
        )
        return None
    # Only here: 4 ms that an engine has while its client makes the order, and not while it starts (2026-11-22).
    from streamer.store.obstore_clients import make_client

    make = partial(make_client, address, translation)
    if family(address.scheme) in _CURL_FAMILIES and (client == "curl" or (client == "auto" and _prefers_curl())):
        from streamer.store.curl_access import make_access
        from streamer.store.curl_store import CurlStore

        return CurlStore(address.root, make, partial(make_access, address, translation))
    from streamer.store.obstore_store import ObstoreStore

    return ObstoreStore(address.root, make)


def _prefers_curl() -> bool:
    return sys.platform == "linux" and usable_cores() <= _CURL_CORES
