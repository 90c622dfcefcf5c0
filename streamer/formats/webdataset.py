"""The format "webdataset" reads tars, in which consecutive entries with the same key are one sample.

`formats/registry.py` and `formats/detect.py` make it for engine, recoders and workers; `shards/values.py` checks names
of new tars by `split_name`. The key of an entry is its path up to the first dot of its basename. The field is the rest
in lower case, as in the `webdataset` library, but "jpg" for "jpeg". Hidden files, names without a dot and
`__metadata__` entries belong to no sample. A key that comes back later in the tar is another sample. A sample's bytes
are its entries with their headers.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence

from streamer.errors import DecodeError
from streamer.formats.base import Facts, Field, Format, SampleName
from streamer.formats.compressed import CompressedRecoder, index_compressed, is_compressed
from streamer.formats.failures import DamagedError, errors_of, make_refusal
from streamer.formats.names import field_name
from streamer.formats.sidecars import pair_sidecars, walk_sidecar
from streamer.formats.tar import (
    BLOCK,
    INDEX_ENDINGS,
    INDEX_PROBE_BYTES,
    TarEntry,
    begins_entry,
    entries_of,
    read_entries,
    sample_edges,
)
from streamer.manifest.beside import is_hidden
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Need, Note, Source, Span, Surveying

SUFFIX = ".tar"
COMPRESSED_SUFFIXES = (
    *(f".tar.{ending}" for ending in ("gz", "zst", "zstd", "xz", "bz2", "lz4", "br", "z")),
    *(".tgz", ".tzst", ".txz", ".tbz", ".tbz2"),
)
_REMEDY = (
    "to repair it, extract it with `tar -xif`, delete the file that is cut off and pack the rest in order of names: "
    "`(cd FOLDER && find * -type f | LC_ALL=C sort | tar -cf ../good.tar -T -)`"
)
# Max bytes of directories and the like between two samples that become a part of the second one, so that the chunk
# stays one range.
_GAP_BYTES = 64 << 10
_LINKS = (
    "files of tars are links, whose content is elsewhere, and are left out, as webdataset leaves them out; "
    "`tar --hard-dereference --dereference` writes their content"
)
_META_NAME = re.compile(r"__[^/]*__($|/)")


class WebDataset(Format, frozen=True, forbid_unknown_fields=True):
    """Reads tars. Those compressed by gzip, bzip2, xz or Zstandard are decompressed when they are fetched."""

    name = "webdataset"

    def accepts(self, key: str) -> bool:
        """Whether an object is a tar, compressed or not: `index` refuses compressions that are not read."""
        return key.lower().endswith((SUFFIX, *COMPRESSED_SUFFIXES)) and not is_hidden(key)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Pairs tars with the index files beside them (see `streamer.formats.tar`); takes all tars."""
        yield from ()
        return pair_sidecars(accepted, others, INDEX_ENDINGS, INDEX_PROBE_BYTES)

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the samples of one tar from byte `start` on; of a compressed tar it yields one block.

        Raises:
            ManifestError: the tar or its index file is damaged, a sample has two fields of one name, or the tar is
                compressed in a way that is not read.
            ConfigError: a library that decompresses the tar is missing.
        """
        target = source.record
        if source.sidecar is not None:
            yield from walk_sidecar(
                source=source, start=start, edges_of=sample_edges, head_bytes=BLOCK, is_head=begins_entry
            )
        elif is_compressed(target.url):
            yield from index_compressed(self, source, facts)
        elif target.url.lower().endswith(COMPRESSED_SUFFIXES):
            raise make_refusal(target, "is compressed in a way that is not read; decompress it to a plain .tar")
        else:
            with errors_of(target, _REMEDY):
                yield from _group(read_entries(target.size, start))

    def recoder(self, facts: Facts) -> CompressedRecoder:
        """Returns what decompresses tars and makes records of their samples."""
        return CompressedRecoder(self, facts)

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """Returns the key of a sample, and a field for each of its files.

        Raises:
            DecodeError: the bytes are not whole entries with one key, or have no file.
        """
        key: str | None = None
        fields = []
        try:
            for entry in entries_of(content):
                parts = split_name(entry.name) if entry.is_file else None
                if parts is None:
                    continue
                if key is not None and parts[0] != key:
                    raise DamagedError(f"a sample with two keys, {key!r} and {parts[0]!r}", entry.start)
                key = parts[0]
                fields.append(Field(parts[1], content[entry.content_start : entry.content_stop]))
        except DamagedError as error:
            reason = f"not a WebDataset sample: {error} (at byte {error.offset})"
            raise DecodeError(reason, offset=error.offset) from error
        if any(field.name.endswith("jpeg") for field in fields):
            # A sample that has both spellings keeps both.
            taken = {field.name for field in fields}
            names = [field_name(field.name) for field in fields]
            fields = [
                field if name in taken else Field(name, field.content)
                for name, field in zip(names, fields, strict=True)
            ]
        if key is None:
            raise DecodeError(f"no file among the {len(content)} bytes of a sample")
        return key, fields


def split_name(name: str) -> tuple[str, str] | None:
    """Returns key and field of an entry with this path; None if it belongs to no sample."""
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot <= slash + 1 or (name.startswith("__") and _META_NAME.match(name)):
        return None
    return name[:dot], name[dot + 1 :].lower()


def _group(
    walk: Generator[Need | TarEntry, memoryview | None, None],
) -> Generator[Need | Span | Note, memoryview | None, None]:
    """Yields a span for consecutive entries with the same key, the needs of `walk`, and a note if there are links.

    Raises:
        DamagedError: a sample has two fields with one name.
    """
    key: str | None = None
    start = stop = 0
    gap_start: int | None = None
    fields: set[str] = set()
    links = 0
    first_link = ""
    answer: memoryview | None = None
    while True:
        try:
            item = walk.send(answer)
        except StopIteration:
            break
        if isinstance(item, Need):
            answer = yield item
            continue
        answer = None
        parts = split_name(item.name) if item.is_file else None
        if parts is None:
            if item.is_link and split_name(item.name) is not None:
                links += 1
                first_link = first_link or item.name
            gap_start = item.start if gap_start is None else gap_start
            continue
        if parts[0] != key:
            if key is not None:
                yield Span(start, stop)
            key = parts[0]
            fields = set()
            start = item.start
            if gap_start is not None and start - gap_start <= _GAP_BYTES:
                start = gap_start
        if parts[1] in fields:
            raise DamagedError(f"sample {key!r} has two fields {parts[1]!r}", item.start)
        fields.add(parts[1])
        stop = item.stop
        gap_start = None
    if key is not None:
        yield Span(start, stop)
    if links:
        yield Note(_LINKS, links, repr(first_link))
