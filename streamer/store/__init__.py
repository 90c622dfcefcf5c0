"""Stores: one ranged GET, pinned to a version, for many kinds of url.

base.py             the protocol
curl/               S3 and web servers by libcurl
obstore_store.py    S3, Google, Azure, web servers by obstore (Rust); obstore_clients.py builds its clients
fsspec_store.py     any url that fsspec knows
hub_store.py        the Hugging Face Hub, pinned to commits
local_store.py      files
credentials/        how they are found and renewed
places.py           the address and region of a bucket; bucket_region.py asks AWS for the region
hosts.py            which names and addresses are those of a cloud
urls, patterns, versions, options, redirects, reached, failures, guard     pure parts
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, cast, get_args

from streamer.base.extras import require
from streamer.base.logins import LOGINS, logins_of, take_logins
from streamer.errors import ConfigError
from streamer.store import guard
from streamer.store.addresses.hosts import check_names
from streamer.store.addresses.urls import Address, shown, split
from streamer.store.base import ObjectStore, StoreStatistics
from streamer.store.local_store import LocalStore
from streamer.store.options import check, family, translate
from streamer.store.reached import reached
from streamer.store.redirects import own_headers

__all__ = ["ObjectStore", "StoreStatistics", "open_store"]

_log = logging.getLogger(__name__)

Client = Literal["auto", "curl", "obstore", "fsspec"]
_CURL_FAMILIES = ("s3", "http")
_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}


def open_store(
    url: str, storage_options: Mapping[str, object] | None = None, *, client: Client = "auto", guarded: bool = False
) -> ObjectStore:
    """Opens the store that serves `url`'s bucket, container, host or file system.

    Does no I/O: connections are opened at the first request, on the loop that makes it.

    Args:
        url: any url below the root; only its root matters.
        storage_options: the options that fsspec takes, and the logins of urls; see `base.logins`.
        client: the client for S3 and web servers. "auto": libcurl on Linux, elsewhere obstore; fsspec (with a line in
            the log) if an option has no counterpart. "curl" or "obstore": that one, or a ConfigError if it cannot serve
            the url. "fsspec": for every url but files. Google and Azure are read by obstore, other urls by fsspec.
        guarded: whether a client has chosen url and options, and must not reach this machine.

    Raises:
        ConfigError: an empty url, one without a bucket, an option that the store does not have, a `client` that cannot
            serve it, or one that is not installed.
        AccessDeniedError: the url is guarded and of this machine.
    """
    if client not in get_args(Client):
        raise ConfigError(f"client={client!r} is not one of {', '.join(get_args(Client))}", field="client")
    (url,), given = take_logins([url], storage_options or {})
    address = split(url)
    login = logins_of(given).get(address.root, "")
    options = {name: value for name, value in given.items() if name != LOGINS}
    kind = family(address.scheme)
    translation = None if kind is None else translate(address, options)
    if kind is not None and kind != "http" and translation is not None:
        check_names(address, kind, translation.config)
    if guarded:
        guard.check(address, translation, is_curl=kind in _CURL_FAMILIES and _is_curl(client))
    if address.scheme == "file":
        return LocalStore()
    check(address, options)
    is_native = client != "fsspec" and family(address.scheme) is not None
    if is_native and (store := _native(address, options, client, login, guarded=guarded)) is not None:
        return store
    _without_redirects(address, options)
    if options.pop("pin", None):
        raise ConfigError(
            f"{shown(address.root)}: pin='size' is of S3, Google, Azure and web servers, and this root is read through "
            "fsspec",
            field="storage_options",
            option="pin",
        )
    require(f"{address.root} (read through fsspec)", _extra(address), "fsspec", field="url")
    # Imported here: an engine that does not need fsspec starts 5 ms sooner.
    from streamer.store.fsspec_store import FsspecStore

    if address.scheme == "hf":
        from streamer.store.hub_store import HubStore

        return HubStore(address.root, address.scheme, options, open_web=open_store)
    return FsspecStore(address.root, address.scheme, options, login)


def _native(
    address: Address, options: Mapping[str, object], client: Client, login: str = "", *, guarded: bool = False
) -> ObjectStore | None:
    """The store by libcurl or obstore; None if fsspec must serve it."""
    if family(address.scheme) == "az" and "@" not in address.root:
        from streamer.store.credentials.azure_tokens import with_variables

        options = with_variables(options)
    elif family(address.scheme) == "gs":
        from streamer.store.credentials.google_tokens import with_emulator

        options = with_emulator(options)
    translation = translate(address, options)
    if family(address.scheme) == "http":
        from streamer.store.credentials.web_login import sign_in

        # The login of the url becomes a header.
        sign_in(address.root, login, translation, guarded=guarded)
        if not _is_curl(client):
            translation.unknown += own_headers(cast("dict[str, str]", translation.client.get("default_headers", {})))
    if translation.unknown:
        _without_counterpart(address, translation.unknown, client)
        return None
    curl = family(address.scheme) in _CURL_FAMILIES and _is_curl(client)
    require(address.root, _extra(address), *(["obstore", "pycurl"] if curl else ["obstore"]), field="url")
    # Imported here: the engine then spends 4 ms while its client makes the order, not while it starts (2026-11-22).
    from streamer.store.credentials.rings import ring_of
    from streamer.store.obstore_clients import make_client
    from streamer.store.places import Places

    ring = ring_of(address, translation)
    way = reached(address, translation)
    places = Places(address, translation)
    make = partial(make_client, address, translation, places, ring)
    if curl:
        from streamer.store.curl.access import make_access
        from streamer.store.curl.store import CurlStore

        access = partial(make_access, address, translation, places)
        if guarded and (place := guard.chosen_place(address, translation)) is not None:
            from streamer.store.curl.guarded import GuardedStore

            return GuardedStore(address.root, make, access, way, ring, places=places, place=place)
        return CurlStore(address.root, make, access, way, ring, places=places)
    _without_redirects(address, options)
    from streamer.store.obstore_store import ObstoreStore

    return ObstoreStore(address.root, make, way, ring, places=places)


def _extra(address: Address) -> str:
    """The extra of the distribution that installs the client for a url."""
    return _EXTRAS.get(family(address.scheme) or "", "stores")


def _without_counterpart(address: Address, unknown: Sequence[str], client: Client) -> None:
    """Logs the options that only fsspec understands; refuses them if `client` names another one."""
    names = ", ".join(sorted(unknown))
    if client != "auto":
        raise ConfigError(
            f"{address.root}: client={client!r} has no counterpart of the storage options {names}; "
            'client="auto" reads through fsspec',
            field="client",
        )
    _log.warning(
        "%s: read through fsspec, which costs about five times the CPU per request, because obstore has no "
        "counterpart of %s",
        address.root,
        names,
    )


def _without_redirects(address: Address, options: Mapping[str, object]) -> None:
    if options.get("redirects"):
        raise ConfigError(
            f"{address.root}: only libcurl follows redirects, which does not read this root: it needs Linux, "
            'client="auto" or "curl", and no option that only fsspec has',
            field="storage_options",
            option="redirects",
        )


def _is_curl(client: Client) -> bool:
    """Whether libcurl is the client; its event loop integration needs epoll."""
    if client == "curl" and sys.platform != "linux":
        raise ConfigError('client="curl" needs Linux; take "auto" or "obstore"', field="client")
    return client == "curl" or (client == "auto" and sys.platform == "linux")
