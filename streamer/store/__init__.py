"""Reads, lists and writes objects of many kinds of url through one protocol, each read pinned to a version.

The engine, its fetch processes, indexing, `streamer index` and the tools open stores with `open_store` or `open_root`,
`shards/` through `StoreOpener` (`indexing/tasks.py`); the requests to them are sent by `fetch/`.

base.py             the protocol of all stores
root.py             what a url and its storage options mean, resolved once
options.py          the table of storage options
curl/               S3 and web servers by libcurl
obstore_store.py    S3, Google, Azure, web servers by obstore (Rust)
obstore_clients.py  obstore's clients
fsspec_store.py     any url that fsspec knows
fsspec_calls.py     the calls of one filesystem of fsspec
fsspec_errors.py    errors of fsspec and of the disk
hub_store.py        the Hugging Face Hub, pinned to commits
local_store.py      files of this machine
credentials/        how credentials are found and renewed
places.py           address and region of a bucket of S3
addresses/          the grammar of urls, hosts and patterns
versions.py         the texts that pin reads to a version
failures.py         errors for the answers of stores
guard.py            refuses addresses of this machine where clients choose the urls
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Literal, cast, get_args

from streamer.base.extras import require_modules
from streamer.errors import ConfigError
from streamer.store import guard
from streamer.store.addresses.hosts import check_names, own_headers
from streamer.store.addresses.urls import Address
from streamer.store.base import ObjectStore, StoreStatistics
from streamer.store.local_store import LocalStore
from streamer.store.options import check_options
from streamer.store.root import StoreRoot

__all__ = ["ObjectStore", "StoreRoot", "StoreStatistics", "open_root", "open_store"]

_log = logging.getLogger(__name__)

Client = Literal["auto", "curl", "obstore", "fsspec"]
_CURL_FAMILIES = ("s3", "http")
_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}


def open_store(
    url: str | Address,
    storage_options: Mapping[str, object] | None = None,
    *,
    client: Client = "auto",
    refuse_local: bool = False,
) -> ObjectStore:
    """Opens the store that serves the bucket, container, host or file system of a url.

    It sends nothing. The caller closes the store (`aclose`).

    Args:
        url: any url in the bucket, container, host or file system, or the parts of one.
        storage_options: the user's storage options, as fsspec takes them, with the logins of urls (`user_urls.py`).
        client: the client for S3 and web servers, see `open_root`.
        refuse_local: whether to refuse local files, loopback, link-local and metadata addresses, because a client of a
            service has chosen url and options.

    Raises:
        ConfigError: the url is empty or has no bucket, a name in it or an option is invalid, the store has no such
            option, or `client` cannot serve both or is not installed.
        AccessDeniedError: `refuse_local` is set, and the url leads to this machine, or `guard.check` refuses it.
    """
    return open_root(StoreRoot.resolve(url, storage_options), client=client, refuse_local=refuse_local)


def open_root(root: StoreRoot, *, client: Client = "auto", refuse_local: bool = False) -> ObjectStore:
    """Opens the store of a root (a bucket, a container, a host or a file system, with its storage options).

    It sends nothing: connections are opened at the first request, on the event loop that makes it. A login of a url, or
    of netrc, becomes a header in the root's settings.

    Args:
        root: the root, which the store keeps.
        client: the client for S3 and web servers. "auto" means libcurl on Linux, elsewhere obstore, or fsspec (with a
            warning in the log) if an option has no counterpart. "curl" and "obstore" mean this client alone. "fsspec"
            means fsspec for every url but files. Google and Azure are read by obstore, other urls by fsspec.
        refuse_local: see `open_store`.

    Raises:
        ConfigError, AccessDeniedError: as `open_store`.
    """
    if client not in get_args(Client):
        raise ConfigError(f"client={client!r} is not one of {', '.join(get_args(Client))}", field="client")
    if root.family is not None and not root.is_web:
        check_names(root.url, root.family, root.chosen.config)
    if refuse_local:
        guard.check(root, is_curl=root.family in _CURL_FAMILIES and _is_curl(client))
    if root.scheme == "file":
        return LocalStore()
    if root.family is not None:
        check_options(root.label, root.family, root.options)
        if client != "fsspec" and (store := _open_native(root, client, refuse_local=refuse_local)) is not None:
            return store
    _refuse_redirects(root)
    options = {name: value for name, value in root.options.items() if name != "pin"}
    if root.options.get("pin"):
        raise ConfigError(
            f"{root.label}: pin='size' is of S3, Google, Azure and web servers, and this root is read through fsspec",
            field="storage_options",
            option="pin",
        )
    require_modules(f"{root.url} (read through fsspec)", _extra(root), "fsspec", field="url")
    # Imported here: an engine that does not need fsspec starts 5 ms sooner.
    from streamer.store.fsspec_store import FsspecStore

    if root.scheme == "hf":
        from streamer.store.hub_store import HubStore

        return HubStore(root.url, root.scheme, options, open_web=open_store)
    return FsspecStore(root.url, root.scheme, options, root.login)


def _open_native(root: StoreRoot, client: Client, *, refuse_local: bool) -> ObjectStore | None:
    """Opens the store by libcurl or obstore; returns None if fsspec must serve it."""
    is_curl = root.family in _CURL_FAMILIES and _is_curl(client)
    unknown = list(root.settings.unknown)
    if root.is_web:
        from streamer.store.credentials.web_login import sign_in

        # The login of the url, or of netrc, becomes a header.
        sign_in(root.url, root.login, root.settings, refuse_local=refuse_local)
        if not is_curl:
            unknown += own_headers(cast("dict[str, str]", root.settings.client.get("default_headers", {})))
    if unknown:
        names = ", ".join(sorted(unknown))
        if client != "auto":
            raise ConfigError(
                f"{root.url}: client={client!r} has no counterpart of the storage options {names}; "
                'client="auto" reads through fsspec',
                field="client",
            )
        _log.warning(
            "%s: read through fsspec, which costs about five times the CPU per request, because obstore has no "
            "counterpart of %s",
            root.url,
            names,
        )
        return None
    require_modules(root.url, _extra(root), *(["obstore", "pycurl"] if is_curl else ["obstore"]), field="url")
    # The import takes 4 ms: here the engine spends them while its client makes the order, not while it starts
    # (2026-11-22).
    if not is_curl:
        from streamer.store.obstore_store import ObstoreStore

        _refuse_redirects(root)
        return ObstoreStore(root)
    from streamer.store.curl.store import CurlStore, GuardedStore

    if refuse_local and (place := guard.find_client_place(root)) is not None:
        return GuardedStore(root, place)
    return CurlStore(root)


def _extra(root: StoreRoot) -> str:
    """Returns the extra of the distribution that installs the client of a root."""
    return _EXTRAS.get(root.family or "", "stores")


def _refuse_redirects(root: StoreRoot) -> None:
    """Raises ConfigError if the option `redirects` is set, which only libcurl has."""
    if root.options.get("redirects"):
        raise ConfigError(
            f"{root.url}: only libcurl follows redirects, which does not read this root: it needs Linux, "
            'client="auto" or "curl", and no option that only fsspec has',
            field="storage_options",
            option="redirects",
        )


def _is_curl(client: Client) -> bool:
    """Whether libcurl is the client, which needs Linux (epoll). Raises ConfigError if "curl" is asked for elsewhere."""
    if client == "curl" and sys.platform != "linux":
        raise ConfigError('client="curl" needs Linux; take "auto" or "obstore"', field="client")
    return client == "curl" or (client == "auto" and sys.platform == "linux")
