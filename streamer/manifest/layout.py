"""Defines the manifest on disk: names and columns of its files, and how root.json is written, read and checked.

`indexing/publish.py` writes it, `manifest/table.py` opens it, `manifest/transfer.py` copies it, and the engine
(`engine/manifests/manifest_copy.py`) and peers (`peers/group.py`) read the root.json of manifests elsewhere.
`batches/samples/opened.py` names the files of selections by it. A manifest is the folder `<digest>/` with root.json and
Arrow files, one for each table of each part:

    root.json                 version, digest, facts about the dataset, and the parts with their digests
    objects-00000.arrows      key, version, size                          one row per object
    extents-00000.arrows      object, start, stop                         not for whole objects: they are the extents
    chunks-00000.arrows       key, first_sample, first_extent, fetch_bytes, local_bytes, codec (and hint)
    samples-00000.arrows      start (and label)                           4 bytes per sample in tars

Recoded datasets have no samples table, but a hint for the recoder in each chunk; the chunk files contain the starts of
their samples.

A manifest has the lowest version that can express it. Version 2 has what recoded datasets and formats with options or
facts need. In version 3, records share parts. In version 4, a client of a shared service has named an endpoint, which
the keys of chunks include.

The digest covers the content (names, types and values), not the files: it does not depend on the library that wrote
them, on the time or on the machine. Numbers of objects, extents, chunks and samples count through all parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NoReturn

import msgspec

from streamer.errors import ManifestCorruptError, ManifestError, ManifestVersionError
from streamer.manifest.columns import Schema
from streamer.manifest.model import Codec, Facts
from streamer.version import VERSION

MAGIC = "streamer-manifest"
VERSIONS = (1, 2, 3, 4)
ROOT_NAME = "root.json"
TABLE_SUFFIX = ".arrows"
# A longer root.json is refused, so that a hostile one cannot fill the memory; 20,000 class names and 100,000 urls fit.
ROOT_LIMIT_BYTES = 16 << 20
PART_SAMPLES = 10_000_000

OBJECTS: Schema = {"key": "binary", "version": "binary", "size": "int64"}
EXTENTS: Schema = {"object": "uint32", "start": "int64", "stop": "int64"}
CHUNKS: Schema = {
    "key": "key16",
    "first_sample": "int64",
    "first_extent": "int64",
    "fetch_bytes": "int64",
    "local_bytes": "int64",
    "codec": "uint8",
}
RECODED_CHUNKS: Schema = {**CHUNKS, "hint": "binary"}
SAMPLES: Schema = {"start": "uint32"}
LABELLED_SAMPLES: Schema = {"start": "uint32", "label": "int32"}


class TableRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows `[first, first + count)` of a table that are in one part, and their digest (`columns.digest_of`)."""

    first: int
    count: int
    digest: str


class ManifestPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of a part, by table: at most 10^7 samples (or one chunk) with their chunks, extents and objects."""

    tables: dict[str, TableRun]


class ManifestContent(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Everything that the digest covers.

    Attributes:
        format: name of the format.
        whole_objects: whether every object is one sample.
        base: common beginning of the urls of all objects.
        classes: class names by label (`columns.write_name`). Empty for containers, whose classes are in `facts`.
        chunk_bytes: size of the chunks that the samples were cut into.
        total_bytes: sum of the sizes of all objects.
        parts: the parts of the tables, in order.
        codec: codec of all chunks (`Codec`).
        samples: number of samples of a recoded dataset, which has no table of them, else 0.
        revision: revision of the format's index and recoder.
        options: options of the format on which index and recoder depend.
        facts: facts about the dataset, or None if there are none.
        endpoint: address that a client of a shared engine has named for the objects, which the keys of chunks include;
            "" if there is none.
    """

    format: str
    whole_objects: bool
    base: str
    classes: list[str]
    chunk_bytes: int
    total_bytes: int
    parts: list[ManifestPart]
    codec: int = 0
    samples: int = 0
    revision: int = 0
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    facts: Facts | None = None
    endpoint: str = ""

    @property
    def version(self) -> int:
        """The lowest version that can express this content."""
        if self.endpoint:
            return 4
        if self.codec == Codec.SHARED:
            return 3
        return 2 if self.codec or self.samples or self.revision or self.options or self.facts else 1

    @property
    def schemas(self) -> dict[str, Schema]:
        """The columns of each table that a part has, by name of the table."""
        if self.whole_objects:
            return {"objects": OBJECTS, "chunks": CHUNKS, "samples": LABELLED_SAMPLES}
        if self.codec:
            return {"objects": OBJECTS, "extents": EXTENTS, "chunks": RECODED_CHUNKS}
        return {"objects": OBJECTS, "extents": EXTENTS, "chunks": CHUNKS, "samples": SAMPLES}

    def digest(self) -> str:
        """Computes the identity of the manifest: 32 hex characters."""
        encoded = msgspec.json.encode([MAGIC, self.version, self], order="deterministic" if self.version > 1 else None)
        return blake2b(encoded, digest_size=16).hexdigest()

    def count(self, table: str) -> int:
        """Returns the number of rows of a table in all parts; 0 for a table that this manifest does not have."""
        if table == "samples" and self.codec:
            return self.samples
        return sum(part.tables[table].count for part in self.parts if table in part.tables)


class Root(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of root.json.

    The indexed urls are not part of the content: `s3://bucket/train` and `s3://bucket/train/` are one dataset with the
    same state and cache. The urls of the objects are part of it.

    Attributes:
        magic: `MAGIC`.
        version: version of the manifest.
        digest: digest of the content.
        urls: the indexed urls.
        file_bytes: length of each file of a table, by name.
        content: all that the digest covers.
    """

    magic: str
    version: int
    digest: str
    urls: list[str]
    file_bytes: dict[str, int]
    content: ManifestContent


class _Preamble(msgspec.Struct, frozen=True):
    magic: str
    version: int


def selection_name(manifest_digest: str, digest: str) -> str:
    """Returns the name of a selection's file, which is beside its manifest's folder, from the digests of both."""
    return f"{manifest_digest}.{digest}.arrows"


def file_name(table: str, part: int) -> str:
    """Returns the name of the file with one part of a table, such as "chunks-00000.arrows"."""
    return f"{table}-{part:05d}{TABLE_SUFFIX}"


def encode_root(content: ManifestContent, urls: Sequence[str], file_bytes: dict[str, int]) -> bytes:
    """Returns the bytes of root.json.

    Args:
        content: all that the digest covers.
        urls: the indexed urls.
        file_bytes: length of each file of a table, by name.

    Raises:
        ManifestError: it would be longer than readers accept.
    """
    root = Root(
        magic=MAGIC,
        version=content.version,
        digest=content.digest(),
        urls=list(urls),
        file_bytes=file_bytes,
        content=content,
    )
    raw = msgspec.json.format(msgspec.json.encode(root), indent=1)
    if len(raw) > ROOT_LIMIT_BYTES:
        raise ManifestError(
            f"{len(urls)} urls and {len(content.classes)} classes make {ROOT_NAME} {len(raw)} bytes long, "
            f"more than {ROOT_LIMIT_BYTES}; name a prefix or a glob instead of single objects",
            urls=len(urls),
            classes=len(content.classes),
        )
    return raw


def decode_root(raw: bytes, where: str) -> Root:
    """Parses root.json, and checks its digest and that files and parts fit each other.

    Args:
        raw: the bytes of root.json.
        where: its path or url, for errors.

    Raises:
        ManifestVersionError: it has a version that this streamer does not read.
        ManifestCorruptError: it is malformed, too long, or contradicts itself.
    """
    if len(raw) > ROOT_LIMIT_BYTES:
        _corrupt(where, f"{len(raw)} bytes long, more than {ROOT_LIMIT_BYTES}")
    try:
        preamble = msgspec.json.decode(raw, type=_Preamble)
        if preamble.magic == MAGIC and preamble.version not in VERSIONS:
            raise ManifestVersionError(
                f"{where}: manifest of version {preamble.version}, streamer {VERSION} reads {VERSIONS[0]} to "
                f"{VERSIONS[-1]}; index again, or read it with the version that wrote it",
                path=where,
                found=preamble.version,
                expected=VERSIONS[-1],
            )
        root = msgspec.json.decode(raw, type=Root)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ManifestCorruptError(f"{where}: not a manifest: {error}", path=where) from error
    _check(root, where)
    return root


def _check(root: Root, where: str) -> None:
    """Raises ManifestCorruptError if root.json contradicts itself."""
    if root.magic != MAGIC:
        _corrupt(where, f"begins with {root.magic[:40]!r}, not {MAGIC!r}")
    if (actual := root.content.digest()) != root.digest:
        _corrupt(where, f"says digest {root.digest[:40]}, its content has {actual}")
    if root.version != root.content.version:
        _corrupt(where, f"says version {root.version}, its content is of version {root.content.version}")
    if root.content.codec not in list(Codec):
        _corrupt(where, f"chunks of codec {root.content.codec}")
    names = root.content.schemas.keys()
    expected = {file_name(table, i) for i in range(len(root.content.parts)) for table in names}
    if root.file_bytes.keys() != expected or min(root.file_bytes.values(), default=1) < 1:
        _corrupt(where, "its list of files does not fit its parts")
    for table in names:
        following = 0
        for part in root.content.parts:
            run = part.tables.get(table)
            if run is None or run.first != following or run.count < 0:
                _corrupt(where, f"the parts of table {table} do not follow each other")
            following += run.count


def _corrupt(where: str, what: str) -> NoReturn:
    raise ManifestCorruptError(f"{where}: {what}", path=where)
