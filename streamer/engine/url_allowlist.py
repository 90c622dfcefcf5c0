"""Which urls an engine serves, with which storage options, and the fetchers that read them.

An engine that holds credentials serves what is below its configured urls and nothing else. Otherwise every client
could read, with the engine's rights, any bucket, file or web address that the engine can reach.
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
# Urls that braces may stand for where each has to be compared: 0.05 s.
_MAX_COMPARED = 10_000
# Places that are remembered, of 100 bytes, and roots that wait for their stores.
_MOST_PLACES = 10_000
_MOST_UNOPENED = 16

# Separators of the segments of a path, for some server or other, and what begins what follows it.
_SEGMENTS = re.compile(r"[/\\?#]")
# These end a segment for a server that has parameters, or that is written in C.
_END_OF_SEGMENT = re.compile(r"[;\0]")
# Servers decode once or twice; a name that is encoded more often has no other use than to pass them.
_MAX_DECODINGS = 4
# Spellings of a dot and of a slash that decoders have taken for them: UTF-8 of too many bytes, and Microsoft's %u.
_LONG_DOT = re.compile(r"%(?:c0%[ae]e|e0%80%ae|f0%80%80%ae|u002e|uff0e)", re.IGNORECASE)
_LONG_SLASH = re.compile(r"%(?:c0%af|e0%80%af|f0%80%80%af|u002f|u005c|u221[56]|uff0f|uff3c)", re.IGNORECASE)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A last segment that each server and file system reads in the same way.
_ORDINARY = re.compile(r"(?!\.+\Z)[\w.=+,-]+", re.ASCII)


class _AllowedUrl(msgspec.Struct, frozen=True):
    """A configured url as it is compared: "scheme root" and key, cut at slashes."""

    prefix: str
    options: Options
    writable: bool = False

    def __repr__(self) -> str:
        # The options may be secret.
        return f"_AllowedUrl({shown(self.prefix)!r})"


class _NamedRoots:
    """Roots of urls that clients name: each is resolved once, for its place and for the store that opens next."""

    def __init__(self) -> None:
        self._address: Address | None = None
        # Both are kept by a digest of the options, and by root.
        self._places: dict[tuple[bytes, str], str] = {}
        self._unopened: dict[tuple[bytes, str], StoreRoot] = {}

    def find_address(self, url: str) -> Address:
        """Returns an address below the root of a url, which is split if the last one was of another root."""
        address = self._address
        if address is None or not url.startswith(f"{address.root}/"):
            address = self._address = split(url)
        return address

    def describe_places(self, urls: Iterable[str], options: Options) -> set[str]:
        """Returns what options say of the places of urls; see `StoreRoot.describe_chosen_endpoint`."""
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
        """Returns the root of a store that opens, and keeps it no longer: what the store learns of it is its own."""
        return self._unopened.pop((_digest(options), address.root), None) or StoreRoot.resolve(address, options)


def _digest(options: Options) -> bytes:
    """Returns 16 bytes that stand for options, which are secret and may be long."""
    return blake2b(options_key(options).encode(), digest_size=16).digest()


class UrlAllowlist:
    """Decides by url; pure but for resolving links of local files.

    Args:
        datasets: what is served; if empty, everything, with the options that clients send.
        refuse_local: whether to refuse local files, loopback, link-local and metadata addresses in urls that clients
            choose (`store.guard`).
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
        """Whether it depends on urls what is served, or with which options."""
        return self.restricted or self.refuse_local

    def options(self, urls: Iterable[str], offered: Options) -> Options:
        """Returns the storage options for urls that are read together: those of the service, or what a client offers.

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
        """Returns the place of the objects that a client of a shared engine has named by its options; "" if none has.

        Where an engine has one user, or its own options, the same url is the same object for all.
        """
        if self.restricted or not self.refuse_local:
            return ""
        return "; ".join(sorted(self.roots.describe_places(urls, options) - {""}))

    def has_one_owner(self, place: str, urls: Iterable[str]) -> bool:
        """Whether who may write at `place` may write these objects, too, as far as this engine knows.

        What comes from there and cannot be computed again is used for these objects only then.
        """
        if self.restricted:
            return {entry.prefix for _, entry in self._find_entries(urls)} == {self._entry(place).prefix}
        return not self.refuse_local or {split(url).root for url in urls} == {split(place).root}

    def check_writable(self, url: str) -> None:
        """Checks that a client may have something written, with the keys of the service.

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
        """Checks that each object is served with exactly these options; a manifest may name any url.

        Raises:
            AccessDeniedError: one is not.
        """
        if self.restricted:
            for url, entry in self._find_entries(urls):
                if entry.options != options:
                    raise _make_refusal(url)

    def check_chunk(self, chunk: Chunk, options: Options) -> None:
        """Checks the objects of a chunk; see `check_objects`."""
        if self.restricted:
            self.check_objects({extent.object.url for extent in chunk.extents}, options)

    def _expand(self, url: str) -> Sequence[str]:
        """Returns urls by which all that the braces of a url stand for are judged: one of them, where that is enough.

        Raises:
            AccessDeniedError: nothing there can be served.
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
        # A url with braces names what they stand for: "{a,..}" is not a dot segment yet.
        return expand(url)

    def _find_entries(self, urls: Iterable[str]) -> list[tuple[str, _AllowedUrl]]:
        """Returns the entries above urls, each with the first of its urls.

        A folder is compared once for all ordinary names in it: of 10^5 objects one by one it took 1.1 s (2026-11-28).

        Raises:
            AccessDeniedError: a url is not served here.
        """
        found: dict[str, tuple[str, _AllowedUrl]] = {}
        # Folders above whose ordinary names one entry stands, with their path where they are local.
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
        """Whether this entry stands above each ordinary name in a folder."""
        is_whole = folder.startswith("/") or folder.partition("://")[2] != ""
        if not is_whole or any(letter in folder for letter in "?#{}"):
            return False
        inside = _comparable(f"{folder}/").rstrip("/") + "/"
        is_below = inside.startswith(entry.prefix.rstrip("/") + "/")
        return is_below and not any(one.prefix.startswith(inside) for one in self._entries)

    def _entry(self, url: str) -> _AllowedUrl:
        wanted = _comparable(url)
        # The operator alone knows what a server makes of a query, and has written this one or none.
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
    """Returns one spelling per address.

    Raises:
        AccessDeniedError: it has a dot segment, which a server or a client library may resolve to somewhere else.
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
    """Whether a key has a dot segment in any reading of it.

    Servers decode it once or more often, cut parameters, blanks, and what follows a NUL, and some take other letters
    for a dot or a slash.
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
        # It is one dot, or several, for a server that drops blanks at its end.
        name = _END_OF_SEGMENT.split(segment, maxsplit=1)[0].rstrip(" \t")
        if name != "" and not name.strip("."):
            return True
    return False


class Fetchers(FetcherSet):
    """Opens the fetchers of an engine, on its loop.

    Args:
        config: settings of each fetcher.
        allowlist: which urls are read, with which options.
        notify: called with the key of the options and a sentence, when a store has served nothing for a while.
    """

    def __init__(
        self, config: FetchConfig, allowlist: UrlAllowlist, notify: Callable[[str, str], None] = ignore_notice
    ) -> None:
        super().__init__(config, self._open_store, notify)
        self.allowlist = allowlist
        self._client = config.client

    def use_for_chunk(self, chunk: Chunk, options: Mapping[str, object]) -> AbstractAsyncContextManager[Fetcher]:
        """Returns the fetcher for a chunk of a dataset with these options.

        Raises:
            AccessDeniedError: an object of the chunk is not served with them.
        """
        self.allowlist.check_chunk(chunk, options)
        return self.use(options)

    def _open_store(self, options: Mapping[str, object], url: Address) -> ObjectStore:
        root = self.allowlist.roots.take(url, options)
        return open_root(root, client=self._client, refuse_local=self.allowlist.refuse_local)

    def find_address(self, url: str) -> Address:
        """See `FetcherSet.find_address`; an address that the allowlist has found already is not looked for again."""
        return self.allowlist.roots.find_address(url)
