"""Decides which urls an engine serves, with which storage options, and opens the fetchers that read them.

The engine has one `UrlAllowlist` and one `Fetchers`, which `datasets.py`, `bring.py` and `manifests/` use. An engine
that has credentials serves what is below its configured urls and nothing else. Otherwise every client could read, with
the engine's rights, any bucket, file or web address that the engine can reach.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import blake2b
from unicodedata import normalize
from urllib.parse import unquote

import msgspec

from streamer.config import DatasetConfig, FetchConfig
from streamer.errors import AccessDeniedError, ConfigError
from streamer.fetch import Fetcher
from streamer.fetch.fetcher_set import FetcherSet, ignore_notice, options_key
from streamer.manifest.model import Chunk
from streamer.store import ObjectStore, open_root
from streamer.store.addresses.patterns import count_urls, expand, one_of_all
from streamer.store.addresses.urls import HTTP_SCHEMES, Address, shown, split
from streamer.store.root import StoreRoot

Options = Mapping[str, object]
# Most urls that braces may stand for if each has to be compared, which takes 0.05 s.
_MAX_COMPARED = 10_000
# Most places that are remembered, of 100 bytes each, and most roots that wait for their stores.
_MOST_PLACES = 10_000
_MOST_UNOPENED = 16

# Signs that separate the segments of a path for one server or another, or that begin what follows the path.
_SEGMENTS = re.compile(r"[/\\?#]")
# Signs that end a segment for a server that has parameters (;), or that is written in C (NUL).
_END_OF_SEGMENT = re.compile(r"[;\0]")
# A name that is encoded more often than this is refused. Servers decode once or twice, so it could only deceive.
_MAX_DECODINGS = 4
# Spellings of a dot and of a slash that some decoders accept: UTF-8 of too many bytes, and Microsoft's %u.
_LONG_DOT = re.compile(r"%(?:c0%[ae]e|e0%80%ae|f0%80%80%ae|u002e|uff0e)", re.IGNORECASE)
_LONG_SLASH = re.compile(r"%(?:c0%af|e0%80%af|f0%80%80%af|u002f|u005c|u221[56]|uff0f|uff3c)", re.IGNORECASE)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A last segment that each server and file system reads in the same way.
_ORDINARY = re.compile(r"(?!\.+\Z)[\w.=+,-]+", re.ASCII)


class _AllowedUrl(msgspec.Struct, frozen=True):
    """A configured url in the spelling that is compared (`_comparable`), its options, and whether clients may write."""

    prefix: str
    options: Options
    writable: bool = False

    def __repr__(self) -> str:
        # The options may be secret.
        return f"_AllowedUrl({shown(self.prefix)!r})"


class _NamedRoots:
    """Resolves the roots of urls that clients name, each once: for its place, and for the store that opens next."""

    def __init__(self) -> None:
        self._address: Address | None = None
        # Keys of both are a digest of the options, and the root.
        self._places: dict[tuple[bytes, str], str] = {}
        self._unopened: dict[tuple[bytes, str], StoreRoot] = {}

    def find_address(self, url: str) -> Address:
        """Returns an address in the root of a url: the one of the call before if that has the same root.

        Only its root is that of the url; its key may be another one.
        """
        address = self._address
        if address is None or not url.startswith(f"{address.root}/"):
            address = self._address = split(url)
        return address

    def describe_places(self, urls: Iterable[str], options: Options) -> set[str]:
        """Returns the places where the options put the roots of urls, such as an endpoint; "" is the usual place.

        See `StoreRoot.describe_chosen_endpoint`.
        """
        digest = _digest(options)
        found = set[str]()
        for url in urls:
            address = self.find_address(url)
            asked = digest, address.root
            place = self._places.get(asked)
            if place is None:
                root = StoreRoot.resolve(address, options)
                place = root.describe_chosen_endpoint()
                if len(self._places) >= _MOST_PLACES:
                    self._places.clear()
                self._places[asked] = place
                if len(self._unopened) >= _MOST_UNOPENED:
                    self._unopened.clear()
                self._unopened[asked] = root
            found.add(place)
        return found

    def take(self, address: Address, options: Options) -> StoreRoot:
        """Returns the resolved root for a store that opens, which may change it: it is not given to another store."""
        return self._unopened.pop((_digest(options), address.root), None) or StoreRoot.resolve(address, options)


def _digest(options: Options) -> bytes:
    """Returns 16 bytes that stand for options, which are secret and may be long."""
    return blake2b(options_key(options).encode(), digest_size=16).digest()


class UrlAllowlist:
    """Decides by url what is served. It reads no files, but looks at links of local ones.

    Where a method looks at urls, it raises ConfigError for one that is no address (`split`).

    Args:
        datasets: the configured datasets. Without any, everything is served, with the options that clients send.
        refuse_local: whether to refuse local files, loopback, link-local and metadata addresses in urls that clients
            choose (`store/guard.py`).

    Attributes:
        roots: resolved roots of urls, for the stores that open.

    Raises:
        AccessDeniedError: a configured url has a dot segment or control characters.
    """

    def __init__(self, datasets: Sequence[DatasetConfig] = (), *, refuse_local: bool = False) -> None:
        self.refuse_local = refuse_local
        entries = [_AllowedUrl(_comparable(one.url), one.storage_options, one.writable) for one in datasets]
        self._entries = sorted(entries, key=lambda entry: len(entry.prefix), reverse=True)
        self.roots = _NamedRoots()

    def __repr__(self) -> str:
        return f"UrlAllowlist({self._entries})"

    @property
    def restricted(self) -> bool:
        """Whether only configured urls are served, with the engine's own options and not those of clients."""
        return bool(self._entries)

    @property
    def decides(self) -> bool:
        """Whether urls decide what is served, or with which options; False in an engine of one user."""
        return self.restricted or self.refuse_local

    def options(self, urls: Iterable[str], offered: Options) -> Options:
        """Returns the storage options for urls that are read together: the service's own, or those of a client.

        Args:
            urls: urls, which may have braces.
            offered: storage options of the client, which are returned if the service has none of its own.

        Raises:
            AccessDeniedError: a url is not served here.
            ConfigError: the urls have different options, or braces cannot be expanded.
        """
        if not self.restricted:
            return offered
        found = self._find_entries(one for url in urls for one in self._expand(url))
        for url, entry in found[1:]:
            if entry.options != found[0][1].options:
                raise ConfigError(
                    f"{shown(found[0][0])} and {shown(url)} have different storage options in the service's "
                    "configuration; one dataset is read with one set of them",
                    field="storage_options",
                )
        return found[0][1].options if found else {}

    def endpoint(self, urls: Iterable[str], options: Options) -> str:
        """Returns the place, such as an endpoint, that the options of a client put urls at; "" for the usual place.

        It is "" also in an engine of one user and in one with options of its own: there the same url is the same object
        for all clients.
        """
        if self.restricted or not self.refuse_local:
            return ""
        return "; ".join(sorted(self.roots.describe_places(urls, options) - {""}))

    def has_one_owner(self, place: str, urls: Iterable[str]) -> bool:
        """Whether those who may write at the url `place` may write these objects, too, as far as this engine knows.

        They may in an engine of one user. In a service with entries, all urls must be below one entry, and in another
        service in one root. What lies at `place` and cannot be computed again is used for these objects only then.

        Raises:
            AccessDeniedError: a url is not served here.
            ConfigError: a url has a scheme without a bucket or host.
        """
        if self.restricted:
            return {entry.prefix for _, entry in self._find_entries(urls)} == {self._entry(place).prefix}
        return not self.refuse_local or {split(url).root for url in urls} == {split(place).root}

    def check_writable(self, url: str) -> None:
        """Checks that a client may let this engine write something to a url.

        Raises:
            AccessDeniedError: this engine is a service, and its configuration does not permit it.
        """
        if self.decides and not (self.restricted and self._entry(url).writable):
            raise AccessDeniedError(
                f"there is no manifest at {shown(url)}, and this service writes none there for its clients: set "
                f"writable = true in the [[datasets]] entry of its configuration, or write it once with "
                f"`streamer index URL --out {shown(url)}`, or leave manifest= out",
                url=shown(url),
            )

    def check_objects(self, urls: Iterable[str], options: Options) -> None:
        """Checks that each object is served with exactly these options, because a manifest may name any url.

        Raises:
            AccessDeniedError: an object is not served, or with other options.
        """
        if self.restricted:
            for url, entry in self._find_entries(urls):
                if entry.options != options:
                    raise _make_refusal(url)

    def check_chunk(self, chunk: Chunk, options: Options) -> None:
        """Checks the objects of a chunk, as `check_objects`."""
        if self.restricted:
            self.check_objects({extent.object.url for extent in chunk.extents}, options)

    def _expand(self, url: str) -> Sequence[str]:
        """Returns the urls that the braces of a url stand for, or one of them if the others are judged alike.

        Raises:
            AccessDeniedError: nothing below the folder of the braces can be served.
            ConfigError: each would have to be compared, and they are too many.
        """
        if "{" not in url:
            return [url]
        folder = url.partition("{")[0].rpartition("/")[0] + "/"
        one = one_of_all(url)
        # Links of files may lead anywhere, and so may braces in a host.
        if one is not None and "/" in folder.partition("://")[2] and split(url).scheme != "file":
            inside = _comparable(folder).rstrip("/") + "/"
            if not any(entry.prefix.startswith(inside) for entry in self._entries):
                return [one]
        if (count := count_urls(url)[0]) > _MAX_COMPARED:
            raise ConfigError(
                f"{shown(url)[:500]} stands for {count:,} urls of several datasets or of local files; these "
                f"are compared one by one, at most {_MAX_COMPARED:,}; name each folder in a url of its own",
                field="url",
            )
        # The expanded urls are judged, because "{a,..}" itself has no dot segment.
        return expand(url)

    def _find_entries(self, urls: Iterable[str]) -> list[tuple[str, _AllowedUrl]]:
        """Returns the entries that urls are below, each with the first of its urls.

        A folder is compared once for all ordinary names in it: 10^5 objects one by one took 1.1 s (2026-11-28).

        Raises:
            AccessDeniedError: a url is not served here.
        """
        found: dict[str, tuple[str, _AllowedUrl]] = {}
        # Folders in which all ordinary names are below one entry, with the path of local folders, otherwise "".
        folders: dict[str, str] = {}
        for url in urls:
            folder, _, name = url.rpartition("/")
            is_ordinary = _ORDINARY.fullmatch(name) is not None
            if is_ordinary and folder in folders:
                path = folders[folder]
                # A link may lead anywhere.
                if not path or not os.path.islink(f"{path}/{name}"):
                    continue
            entry = self._entry(url)
            found.setdefault(entry.prefix, (url, entry))
            if is_ordinary and folder not in folders and self._has_one_entry(folder, entry):
                address = split(f"{folder}/")
                folders[folder] = os.path.realpath(address.key) if address.scheme == "file" else ""
        return list(found.values())

    def _has_one_entry(self, folder: str, entry: _AllowedUrl) -> bool:
        """Whether each ordinary name in a folder is below this entry, and below no entry inside the folder."""
        is_whole = folder.startswith("/") or folder.partition("://")[2] != ""
        if not is_whole or any(letter in folder for letter in "?#{}"):
            return False
        inside = _comparable(f"{folder}/").rstrip("/") + "/"
        is_below = inside.startswith(entry.prefix.rstrip("/") + "/")
        return is_below and not any(one.prefix.startswith(inside) for one in self._entries)

    def _entry(self, url: str) -> _AllowedUrl:
        """Returns the longest entry that a url is below, or is; raises AccessDeniedError if there is none."""
        wanted = _comparable(url)
        # A url with a query must be an entry itself, because the operator alone knows what a server makes of a query.
        has_query = "?" in url and split(url).scheme in HTTP_SCHEMES
        for entry in self._entries:
            is_below = not has_query and wanted.startswith(entry.prefix.rstrip("/") + "/")
            if wanted == entry.prefix or is_below:
                return entry
        raise _make_refusal(url)


def _make_refusal(url: str) -> AccessDeniedError:
    return AccessDeniedError(
        f"{shown(url)} is not among the datasets of this service; add a [[datasets]] entry for it to the service's "
        "configuration",
        url=shown(url),
    )


def _comparable(url: str) -> str:
    """Returns the one spelling of an address that is compared; links of local files are resolved in it.

    Raises:
        AccessDeniedError: the url has a dot segment, which a server or a client library may resolve to somewhere else,
            or control characters.
    """
    if "\0" in url:  # no store and no file system has such a name
        raise _make_refusal(url.replace("\0", "?"))
    address = split(url)
    if address.scheme == "file":
        # A link in a served folder must not lead out of it.
        return "file://" + os.path.realpath(address.key)
    is_web = address.scheme in HTTP_SCHEMES
    # The url is compared as it is sent: the key of a web server is decoded.
    if has_dots(url.partition("://")[2].partition("/")[2] if is_web else address.key):
        raise _make_refusal(url)
    if is_web and (not url.isprintable() or _CONTROLS.search(address.key)):
        raise _make_refusal(url)
    return f"{address.root}/{address.key}".rstrip("/")


def has_dots(key: str) -> bool:
    """Whether a key has a segment of dots alone, such as "..", in any way in which a server may read it.

    Servers decode a key once or more often, cut parameters, blanks, and what follows a NUL, and some take other letters
    for a dot or a slash. A key that is encoded too often counts as one with a dot segment.
    """
    readings = {key}
    for _ in range(_MAX_DECODINGS):
        decoded = unquote(key)
        if decoded == key:
            break
        key = decoded
        readings.add(key)
    else:
        return True
    readings |= {_LONG_SLASH.sub("/", _LONG_DOT.sub(".", text)) for text in readings if "%" in text}
    readings |= {normalize("NFKC", text) for text in readings if not text.isascii()}
    for segment in (part for text in readings for part in _SEGMENTS.split(text)):
        # A server may drop blanks at the end of a name, so that only dots are left.
        name = _END_OF_SEGMENT.split(segment, maxsplit=1)[0].rstrip(" \t")
        if name != "" and not name.strip("."):
            return True
    return False


class Fetchers(FetcherSet):
    """Opens the fetchers of an engine, on its loop. The engine sets another `allowlist` for another configuration.

    Args:
        config: settings of each fetcher.
        allowlist: decides which urls are read, with which options.
        notify: called with the key of the options and a sentence, when a store has served nothing for a while.
    """

    def __init__(
        self, config: FetchConfig, allowlist: UrlAllowlist, notify: Callable[[str, str], None] = ignore_notice
    ) -> None:
        super().__init__(config, self._open_store, notify)
        self.allowlist = allowlist
        self._client = config.client

    def use_for_chunk(self, chunk: Chunk, options: Mapping[str, object]) -> AbstractAsyncContextManager[Fetcher]:
        """Returns the fetcher for a chunk of a dataset with these options, as a context manager that opens it.

        Raises:
            AccessDeniedError: an object of the chunk is not served with them.
        """
        self.allowlist.check_chunk(chunk, options)
        return self.use(options)

    def _open_store(self, options: Mapping[str, object], url: Address) -> ObjectStore:
        root = self.allowlist.roots.take(url, options)
        return open_root(root, client=self._client, refuse_local=self.allowlist.refuse_local)

    def find_address(self, url: str) -> Address:
        """Returns an address in the root of a url; its key may be another one (`_NamedRoots.find_address`)."""
        return self.allowlist.roots.find_address(url)
