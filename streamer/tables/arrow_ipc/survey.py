"""Surveys Arrow files: finds the fields of all files together, and the files that do not fit to the others.

`tables/arrow_ipc/format.py` uses it. If all files have columns of the same types, the schema of the first file
describes them. Otherwise the schemas are united as those of Parquet files are (`tables/parquet/unify.py`). A file
without rows adds no columns, unless no file has rows. A file that cannot be read adds none, and its index reports it or
leaves it out.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import msgspec

from streamer.errors import ManifestError
from streamer.formats.base import Facts, FieldSpec
from streamer.formats.failures import DamagedError, UnreadError, make_damage_error, make_refusal
from streamer.formats.reading import Reading, read_range, read_ranges
from streamer.formats.table.partitions import find_path_problems, partition_fields, partition_key
from streamer.formats.table.schema_memory import SchemaMemory
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need, Source, Survey, SurveyContext
from streamer.tables.arrow_ipc import messages
from streamer.tables.arrow_ipc.messages import BATCH, END_BYTES, PREFIX_BYTES, read_message, read_prefix
from streamer.tables.arrow_ipc.schema import Schema, read_schema
from streamer.tables.parquet.facts import SchemaUnion
from streamer.tables.parquet.schema import Element, tree

# Raise the number when the schema of a file is read in another way.
_RULE = "arrow-2"
# Bytes of the first read of a file, and of its end. Most schemas fit, even with the names of a thousand classes.
_HEAD_BYTES = 64 << 10
# Number of files that are read at the same time.
_BATCH_FILES = 256
# Max bytes of schemas and footers that are kept for the index.
_MAX_KEPT_BYTES = 64 << 20
_REMEDY = "name the files that agree, or the columns that do (columns=), or write the column anew"


class FileHead(msgspec.Struct, frozen=True):
    """The parts of a file or stream that say which columns it has.

    Attributes:
        message: The message of the schema.
        footer: The footer of a file; empty for a stream.
        has_rows: Whether there are rows; true where the first reads do not tell (a long stream, batches before the last
            64 KiB of a file).
    """

    message: bytes
    footer: bytes
    has_rows: bool = True


class ArrowFileNotes(msgspec.Struct, frozen=True, array_like=True):
    """What the survey tells the index of a file.

    Attributes:
        head: The head of the file, or None if it was not kept.
        problem: Why the file does not fit into the dataset, or "" if it does.
        key: The part of the file's url that has the partitions, or "" if the dataset has no partitions.
    """

    head: FileHead | None = None
    problem: str = ""
    key: str = ""


class _KnownColumns(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a file in the form in which a `SchemaMemory` has them.

    Attributes:
        types: see `Schema`.
        elements: elements of the tree of columns.
        logicals: `SchemaNode.logical` of nodes that have one, with their places in `elements`.
        features: see `Schema`.
        has_rows: see `FileHead`.
    """

    types: list[str]
    elements: list[Element]
    logicals: list[tuple[int, str]]
    features: str
    has_rows: bool


_COLUMNS = msgspec.msgpack.Decoder(_KnownColumns)


def survey_files(
    records: Sequence[ObjectRecord], names: Sequence[str], context: SurveyContext | None = None
) -> Reading[Survey]:
    """Surveys files: reads the schemas that no earlier survey has read, and finds the facts.

    Args:
        records: The files, at least one.
        names: Names of the wanted fields, or empty for all.
        context: The context of the survey; with None, folders in paths are no partitions.

    Raises:
        ConfigError: No file has a field with a wanted name.
        ManifestError: No file can be read, or two fields have one name.
    """
    memory = SchemaMemory(_RULE, context.memories if context else ())
    keys = {record.url: partition_key(record.url, context.base) for record in records} if context else {}
    problems = find_path_problems(keys)
    partitions = partition_fields(key for url, key in keys.items() if url not in problems)
    kept: dict[str, FileHead] = {}
    kept_bytes = 0
    found: list[tuple[ObjectRecord, _KnownColumns]] = []
    failure: ManifestError | None = None
    for start in range(0, len(records), _BATCH_FILES):
        some = records[start : start + _BATCH_FILES]
        unread = [record for record in some if memory.find(record) is None]
        heads = dict(zip((record.url for record in unread), (yield from _read_heads(unread)), strict=True))
        for record in some:
            head = heads.get(record.url)
            try:
                if isinstance(head, ManifestError):
                    raise head
                encoded = memory.find(record) if head is None else _encode(record, head)
            except ManifestError as error:
                failure = failure or error
                continue
            assert encoded is not None, "the file is remembered, or read"
            memory.add(record, encoded)
            found.append((record, _COLUMNS.decode(encoded)))
            kept_bytes += len(head.message) + len(head.footer) if head else 0
            if head and kept_bytes <= _MAX_KEPT_BYTES:
                kept[record.url] = head
    if not found:
        assert failure is not None, "there is a file"
        raise failure
    counted = [pair for pair in found if pair[1].has_rows] or found
    # The first file describes all files even if it has no rows, if its columns have the same types.
    first = found[0] if found[0][1].types == counted[0][1].types else counted[0]
    head = kept.get(first[0].url) or (yield from read_head(first[0]))
    facts = _describe(counted, first, head, names=names, partitions=partitions, problems=problems)
    sources = []
    for record in records:
        key = keys[record.url] if partitions else ""
        notes = ArrowFileNotes(kept.get(record.url), problems.get(record.url, ""), key)
        sources.append(Source(record, msgspec.msgpack.encode(notes)))
    return Survey(sources, facts, memory=memory.encode())


def _describe(
    counted: Sequence[tuple[ObjectRecord, _KnownColumns]],
    first: tuple[ObjectRecord, _KnownColumns],
    head: FileHead,
    *,
    names: Sequence[str],
    partitions: Sequence[FieldSpec],
    problems: dict[str, str],
) -> Facts:
    """Returns the facts about files, and adds to `problems` the files that do not fit.

    Args:
        counted: The files that have rows (all files if none has rows), with their columns.
        first: The file that describes the others if all have columns of the same types.
        head: Head of the file `first`.
        names: Names of the wanted fields, or empty for all.
        partitions: Fields that the paths of the files have.
        problems: Reasons why files do not fit, by url; more are added.
    """
    is_uniform = all(each.types == first[1].types for _, each in counted)
    union = SchemaUnion(names, _REMEDY)
    for record, own in [first] if is_uniform else counted:
        if problem := union.add(record, tree(own.elements, dict(own.logicals)), own.features):
            problems.setdefault(record.url, problem)
    found = union.facts(partitions)
    notes: dict[str, object] = {"schema": b64encode(head.message).decode()}
    if names:
        notes["columns"] = [*names]
    if not is_uniform:
        notes["united"] = found.notes
    return Facts(found.fields, notes, found.classes)


def _encode(record: ObjectRecord, head: FileHead) -> bytes:
    """Returns the columns of a file as `_KnownColumns` in MessagePack; raises ManifestError."""
    schema = _parse(record, head)
    logicals = [*schema.root.logicals().items()]
    columns = _KnownColumns(
        types=schema.types,
        elements=schema.root.elements(),
        logicals=logicals,
        features=schema.features,
        has_rows=head.has_rows,
    )
    return msgspec.msgpack.encode(columns)


def _parse(record: ObjectRecord, head: FileHead) -> Schema:
    """Returns the schema of a file; raises ManifestError if it is damaged or not read."""
    try:
        return read_schema(memoryview(head.message))
    except UnreadError as error:
        raise make_refusal(record, f"has {error}", of_one=True) from error
    except ValueError as error:
        raise make_damage_error(record, f"not an Arrow file: {error}", record.size if head.footer else 0) from error


# ---------------------------------------------------------------- heads of files


def read_head(record: ObjectRecord) -> Reading[FileHead]:
    """Reads the head of a file or stream; raises ManifestError if it is damaged or not read."""
    (found,) = yield from _read_heads([record])
    if isinstance(found, ManifestError):
        raise found
    return found


def read_file_schema(record: ObjectRecord, head: FileHead | None) -> Reading[tuple[FileHead, Schema]]:
    """Returns the head of a file and its schema; with None for `head` it is read. Raises ManifestError."""
    head = head or (yield from read_head(record))
    return head, _parse(record, head)


def _read_heads(records: Sequence[ObjectRecord]) -> Reading[list[FileHead | ManifestError]]:
    """Reads the heads of some files at the same time; returns, for a file that is damaged, the error."""
    filled = [record for record in records if record.size]
    starts = yield from read_ranges([Need(0, min(_HEAD_BYTES, record.size), record) for record in filled])
    contents = dict(zip((record.url for record in filled), starts, strict=True))
    files = [record for record in filled if contents[record.url][: len(messages.MAGIC)] == messages.MAGIC]
    ends = yield from read_ranges([Need(max(0, record.size - _HEAD_BYTES), record.size, record) for record in files])
    tails = dict(zip((record.url for record in files), ends, strict=True))
    found: list[FileHead | ManifestError] = []
    for record in records:
        try:
            if not record.size:
                raise make_damage_error(record, "no bytes", 0)
            found.append((yield from _finish_head(record, contents[record.url], tails.get(record.url))))
        except ManifestError as error:
            found.append(error)
    return found


def _finish_head(record: ObjectRecord, content: memoryview, tail: memoryview | None) -> Reading[FileHead]:
    """Makes the head of a file from the first reads, and reads the rest of a schema or footer that is longer.

    Args:
        record: the file.
        content: its first bytes.
        tail: its last bytes, if it is a file with a footer; None for a stream.

    Raises:
        ManifestError: it is damaged, or not read.
    """
    try:
        if tail is not None:
            length = messages.footer_bytes(tail) + END_BYTES
            if length > record.size:
                raise DamagedError(f"a footer of {length} bytes")
            end = tail
            if length > len(tail):
                end = yield from read_range(record.size - length, record.size, record)
            footer = bytes(end[-length:-END_BYTES])
            message = messages.schema_message(memoryview(footer))
            return FileHead(message, footer, _lists_rows(footer, tail, record.size - len(tail)))
        if len(content) < PREFIX_BYTES:
            raise DamagedError(f"{len(content)} bytes")
        stop = PREFIX_BYTES + read_prefix(content)
        if stop > record.size:
            raise DamagedError(f"cut off in its schema, which ends at byte {stop}")
        if stop > len(content):
            content = yield from read_range(0, stop, record)
        return FileHead(bytes(content[:stop]), b"", len(content) < record.size or _has_rows(content, stop))
    except UnreadError as error:
        raise make_refusal(record, f"has {error}", of_one=True) from error
    except ValueError as error:
        raise make_damage_error(
            record, f"not an Arrow file: {error}", record.size if tail is not None else 0
        ) from error


def _lists_rows(footer: bytes, tail: memoryview, start: int) -> bool:
    """Whether a file with a footer has rows. Batches whose heads are not in its last bytes count as having rows.

    Args:
        footer: the footer.
        tail: the last bytes of the file.
        start: byte of the file at which `tail` begins.
    """
    _, batches = messages.read_footer(memoryview(footer))
    for place, length, *_ in batches.tolist():
        head = tail[max(0, place - start) : max(0, place - start) + length]
        # The index reports a footer that is wrong.
        if place < start or len(head) < PREFIX_BYTES or _has_rows(head, 0):
            return True
    return False


def _has_rows(content: memoryview, at: int) -> bool:
    """Whether messages from byte `at` on have rows. Damaged ones count as having rows, and the index reports them."""
    try:
        while at + PREFIX_BYTES < len(content) and (length := read_prefix(content[at:])):
            message = read_message(content[at + PREFIX_BYTES : at + PREFIX_BYTES + length])
            if message.kind == BATCH and message.rows:
                return True
            at += PREFIX_BYTES + length + message.body_bytes
    except ValueError:
        return True
    return False
