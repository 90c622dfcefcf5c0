"""Keeps the manifests of a cache folder: remembers which one answers which request, and removes unused ones.

`manifests.py` has the one `ManifestStore` of an engine, and `table_logs.py` uses its requests. The files:

    manifests/<digest>/        a manifest, where the folder's time is that of its last use
    manifests/sources/<name>   the newest answer to one request: "<digest of the listing> <digest of the manifest>", and
                               a line for each note about objects that were left out
    manifests/logs/<name>/     what an unfinished index for that request has found, removed with the answer
    manifests/<digest>.checked the files of a manifest whose keys were checked, as they were then
    manifests/<digest>.<rest>  what is made of a manifest: selections, columns, rows of documents, tables of keys; what
                               is made of two, as a join is, has the name <digest>-<digest>.<rest>

A manifest that neither a source nor the table of a join names was superseded: the bucket has changed since. It is
removed once it is unused. The others stay, because building one may mean reading all the data again. Unused ones take
at most a share of the limit, and are removed in the order of their last use. What is made of a manifest counts as a
part of it, and leaves the disk after it. Processes that have it mapped keep it. All this state is on the disk: a kill
between two steps loses nothing.

All calls are synchronous, and `remove_idle` runs in a thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from streamer.annotations.table import AnnotationTable
from streamer.cache.folder import measure_usage
from streamer.errors import ManifestError
from streamer.manifest.kept import DIGEST, find_made, remove_orphans
from streamer.manifest.reader_lock import remove_unread, sweep_leftovers
from streamer.manifest.staging import sweep
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest
from streamer.wire.store_options import decode_options

# A manifest that was used within this time is not removed. A reader locks it milliseconds after the answer, or, if it
# takes no lock because it only looks at the manifest, is done within minutes.
QUIET_SECONDS = 300.0
# Is changed when other files of the same listing become samples, so that earlier answers are not found any more.
_FILE_RULES = "files 4"
# Notes of an unfinished index are removed after this time, in which its request did not come again.
LOG_SECONDS = 7 * 86400.0
# Most tables of annotations that stay mapped. Each member of a mix may have its own.
_MAX_TABLES = 64


class LocatedRequest(msgspec.Struct, frozen=True):
    """A client's request for a manifest, and the tuples that identify its answers.

    Digests of these tuples are names of files (`manifests/sources/`), so the tuples of a request never change.

    Attributes:
        message: the client's request, with the storage options that are used for it.
        format_options: options of the format by name.
        endpoint: the place that the storage options name, if several users share the engine, otherwise "".
    """

    message: GetManifest
    format_options: Mapping[str, object]
    endpoint: str

    @classmethod
    def make(cls, message: GetManifest, endpoint: str = "") -> LocatedRequest:
        """Makes it of a request at an endpoint.

        Raises:
            ConfigError: the format's options in the request are not a JSON mapping.
        """
        return cls(message, decode_options(message.format_options, "format_options"), endpoint)

    @property
    def identity(self) -> tuple[object, ...]:
        """Tuple that is equal for requests that have the same answer."""
        asked = self.message
        choices = (self._extensions, asked.skip_damaged, asked.in_key_order)
        chosen = choices if any(choice not in {None, False} for choice in choices) else ()
        return (tuple(asked.urls), self.format_text, asked.manifest, self._chunk_bytes, *chosen, *self._place)

    @property
    def container_source(self) -> tuple[object, ...]:
        """Tuple that is equal for requests for which the same manifest is built, if samples are inside of objects."""
        choices = ("skip damaged",) if self.message.skip_damaged else ()
        return (*self.inputs, *choices, *self._place)

    @property
    def file_source(self) -> tuple[object, ...]:
        """Tuple that is equal for requests for which the same manifest is built, if objects are samples."""
        return (*self.inputs, _FILE_RULES, self._extensions, self.message.in_key_order, *self._place)

    @property
    def inputs(self) -> tuple[object, ...]:
        """Tuple of what every manifest depends on besides the listing: the urls, the format, the sizes of chunks."""
        return (tuple(self.message.urls), self.format_text, self._chunk_bytes)

    @property
    def format_text(self) -> str:
        """Name and options of the format as one text."""
        options = json.dumps(self.format_options, sort_keys=True) if self.format_options else ""
        return self.message.format + options

    @property
    def _chunk_bytes(self) -> int | None:
        return self.message.chunk_bytes or None

    @property
    def _extensions(self) -> tuple[str, ...] | None:
        return None if self.message.extensions is None else tuple(self.message.extensions)

    @property
    def _place(self) -> tuple[object, ...]:
        return (f"at {self.endpoint}",) if self.endpoint else ()


class ManifestStore:
    """Keeps the manifests of a cache folder. The engine's `Manifests` has one, and calls nothing during `remove_idle`.

    A `request` below is one of the tuples of `LocatedRequest`, and a `listing` the digest of a listing.

    Args:
        root: folder of the manifests.

    Attributes:
        tables: tables of annotations that were asked for last, by digest. They are mapped, so that they can be written
            again after the folder was removed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources = root / "sources"
        self._logs = root / "logs"
        self.tables: dict[str, AnnotationTable] = {}

    def __repr__(self) -> str:
        return f"ManifestStore({str(self._root)!r})"

    def find(self, request: tuple[object, ...], listing: str) -> Manifest | None:
        """Returns the manifest that was built for a request from the same listing, or None if it is not here.

        Raises:
            ConfigError: this process may have no more descriptors.
        """
        with suppress(ManifestError):
            if (folder := self.folder(request, listing)) is not None:
                return Manifest.open(folder)
        return None

    def find_table(self, request: tuple[object, ...], listing: str) -> str | None:
        """Returns the digest of the table of annotations that was built from the same listing, which it maps.

        Returns None if the table is not here.
        """
        with suppress(ManifestError):
            if (folder := self.folder(request, listing)) is not None:
                return self.map_table(folder.name)
        return None

    def map_table(self, digest: str) -> str:
        """Maps a table of annotations, and drops the one that was not asked for longest if there are many.

        Returns:
            The digest.

        Raises:
            ManifestError: the table is not there.
        """
        known = self.tables.pop(digest) if digest in self.tables else AnnotationTable.map_folder(self._root / digest)
        self.tables[digest] = known
        if len(self.tables) > _MAX_TABLES:
            del self.tables[next(iter(self.tables))]
        return digest

    def folder(self, request: tuple[object, ...], listing: str) -> Path | None:
        """Returns the folder of what was built for a request from the same listing, or None if it is not here."""
        with suppress(OSError, ValueError):
            known, digest = self._source(request).read_text().partition("\n")[0].split()
            if known == listing and (self._root / digest).is_dir():
                return self._root / digest
        return None

    def newest(self, request: tuple[object, ...]) -> Manifest | None:
        """Returns the manifest that answered a request last, whatever the listing is now; None if it is not here.

        Raises:
            ConfigError: this process may have no more descriptors.
        """
        with suppress(OSError, ManifestError, ValueError):
            _, digest = self._source(request).read_text().partition("\n")[0].split()
            return Manifest.open(self._root / digest)
        return None

    def notes(self, request: tuple[object, ...], digest: str) -> list[str]:
        """Returns notes about objects that a manifest leaves out; [] if it is not the last answer to the request."""
        with suppress(OSError, ValueError):
            answer, *notes = self._source(request).read_text(errors="replace").splitlines()
            if answer.endswith(f" {digest}"):
                return notes
        return []

    def remember(self, request: tuple[object, ...], listing: str, digest: str, notes: Sequence[str] = ()) -> None:
        """Writes down the answer to a request, and removes the notes of its index.

        Args:
            request: tuple of the request.
            listing: digest of the listing from which the answer was built.
            digest: digest of the manifest or table.
            notes: notes about objects that were left out.

        Raises:
            OSError: the disk refuses it.
        """
        source = self._source(request)
        source.parent.mkdir(exist_ok=True)
        temporary = source.with_suffix(".new")
        lines = (" ".join(note.splitlines()) for note in notes)
        try:
            temporary.write_text("\n".join([f"{listing} {digest}", *lines]), errors="replace")
            temporary.rename(source)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        shutil.rmtree(self.log_folder(request), ignore_errors=True)

    def remove_logs(self) -> None:
        """Removes what unfinished indexes have noted: the next ones begin anew."""
        shutil.rmtree(self._logs, ignore_errors=True)

    def log_folder(self, request: tuple[object, ...]) -> Path:
        """Returns the folder in which an index for the request notes what it has found, until `remember`."""
        return self._logs / _name_of(request)

    def use(self, digest: str) -> None:
        """Marks a manifest as used now."""
        with suppress(OSError):  # a folder whose time cannot be changed is used nevertheless
            os.utime(self._root / digest)

    def remove_idle(self, used: Collection[str], max_bytes: int, now: float) -> list[str]:
        """Removes superseded manifests, and those unused for longest while all unused ones exceed their limit.

        Removes leftovers of killed processes and notes of abandoned indexes, too, and marks `used` manifests as used.

        Args:
            used: digests of the manifests that are open.
            max_bytes: limit of the unused ones, with what is made of them.
            now: seconds since 1970.

        Returns:
            Digests that are gone.

        Raises:
            OSError: the disk refused a removal.
        """
        sweep(self._root)
        sweep_leftovers(self._root)
        for folder in self._logs.glob("*"):
            if now - folder.stat().st_mtime > LOG_SECONDS:
                shutil.rmtree(folder)
        named = self._list_answers() | self._list_join_parts()
        for digest in used:
            self.use(digest)
        idle = [folder for folder in self._oldest_first() if folder.name not in used]
        idle = [folder for folder in idle if abs(now - folder.stat().st_mtime) > QUIET_SECONDS]
        gone = [folder.name for folder in idle if folder.name not in named and remove_unread(folder)]
        made = find_made(self._root)
        sizes = {
            folder: measure_usage(folder) + sum(map(measure_usage, made.get(folder.name, ())))
            for folder in idle
            if folder.name in named
        }
        surplus = sum(sizes.values()) - max_bytes
        for folder, size in sizes.items():
            if surplus > 0 and remove_unread(folder):
                gone.append(folder.name)
                surplus -= size
        for digest in gone:
            self.tables.pop(digest, None)
        remove_orphans(self._root, self.digests())
        self._list_answers()
        return gone

    def digests(self) -> set[str]:
        """Returns the digests of the manifests on the disk."""
        return {folder.name for folder in self._oldest_first()}

    def _oldest_first(self) -> list[Path]:
        with suppress(FileNotFoundError):
            folders = [path for path in self._root.iterdir() if DIGEST.fullmatch(path.name) and path.is_dir()]
            return sorted(folders, key=lambda path: path.stat().st_mtime)
        return []

    def _list_answers(self) -> set[str]:
        """Returns the digests that sources name; removes sources whose manifest is gone, and unfinished ones."""
        found = set[str]()
        for source in self._all_sources():
            words: list[str] = []
            if DIGEST.fullmatch(source.name):
                words = source.read_text(errors="replace").partition("\n")[0].split()
            if len(words) == 2 and DIGEST.fullmatch(words[1]) and (self._root / words[1]).is_dir():
                found.add(words[1])
            else:
                source.unlink()
        return found

    def _list_join_parts(self) -> set[str]:
        """Returns the digests of the manifests from which joins read their rows, which stay while their join does."""
        found = set[str]()
        for path in self._root.glob("*.join"):
            # Imported late: an engine without joins does not load it.
            from streamer.manifest.joined import JoinHead
            from streamer.manifest.keys import read_head

            with suppress(ManifestError):
                found.add(read_head(path, JoinHead, "join").part)
        return found

    def _all_sources(self) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            yield from list(self._sources.iterdir())

    def _source(self, request: tuple[object, ...]) -> Path:
        return self._sources / _name_of(request)


def _name_of(request: tuple[object, ...]) -> str:
    return hashlib.blake2b(repr(request).encode(), digest_size=16).hexdigest()
