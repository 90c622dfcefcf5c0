"""Surveys Parquet files: finds the fields of all files together, and the files that do not fit to the others.

`tables/parquet/format.py` uses it. The footers of all files are read, unless an earlier survey has read them. A file
without rows adds no columns, unless no file has rows. A damaged file adds none, and its index reports it or leaves it
out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamer.errors import ManifestError
from streamer.formats.base import Facts, FieldSpec
from streamer.formats.failures import DamagedError, UnreadError, make_damage_error, make_refusal
from streamer.formats.names import base_name
from streamer.formats.reading import Reading, read_ranges
from streamer.formats.table.layouts import find_writer, refuse_table
from streamer.formats.table.partitions import find_path_problems, partition_fields, partition_key
from streamer.formats.table.schema_memory import SchemaMemory
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need
from streamer.tables.parquet.facts import SchemaUnion
from streamer.tables.parquet.footer import ENCRYPTED_MAGIC, MAGIC, Description, Descriptions, FileTail, read_tails
from streamer.tables.parquet.schema import Element, SchemaNode, tree

_MAGICS = (MAGIC, ENCRYPTED_MAGIC)
# Raise the number when the schema of a file is read in another way.
SCHEMA_RULE = "parquet-2"
_DESCRIPTION = msgspec.msgpack.Decoder(tuple[list[Element], list[tuple[int, str]], bytes, bool])
HUGGING_FACE = b"huggingface"
# Number of files whose ends are read at the same time, and max bytes of ends that are kept for the index.
_BATCH_FILES = 256
_MAX_KEPT_BYTES = 64 << 20


class ParquetFileNotes(msgspec.Struct, frozen=True, array_like=True):
    """What the survey tells the index of a file.

    Attributes:
        end: The last bytes of the file, with the footer, or empty if they were not kept.
        problem: Why the file does not fit into the dataset, or "" if it does.
        key: The part of the file's url that has the partitions, or "" if the dataset has no partitions.
    """

    end: bytes = b""
    problem: str = ""
    key: str = ""


def describe_files(
    records: Sequence[ObjectRecord], columns: Sequence[str], base: str | None, memory: SchemaMemory
) -> Reading[tuple[Facts, dict[str, bytes]]]:
    """Finds the facts about files: reads the schemas that the memory does not have, and adds all of them to it.

    Args:
        records: The files.
        columns: Names of the wanted fields, or empty for all.
        base: Folder below which `key=value` in paths are fields ("" for the whole path). None if they are no fields.
        memory: The schemas that earlier surveys have read.

    Returns:
        The facts, and for files for which there are some, encoded `ParquetFileNotes` by url.

    Raises:
        ConfigError: no file has a column of a wanted name.
        ManifestError: no file can be read, the files belong to a table with a log of its valid rows, two fields have
            one name, or a column has integers of 128 bits.
    """
    united = _United(columns, memory)
    keys = {} if base is None else {record.url: partition_key(record.url, base) for record in records}
    problems = find_path_problems(keys)
    partitions = partition_fields(key for url, key in keys.items() if url not in problems)
    kept: dict[str, bytes] = {}
    kept_bytes = 0
    for first in range(0, len(records), _BATCH_FILES):
        some = records[first : first + _BATCH_FILES]
        unread = [record for record in some if memory.find(record) is None]
        tails = dict(zip((record.url for record in unread), (yield from read_tails(unread)), strict=True))
        for record in some:
            tail = tails.get(record.url)
            problem = united.add(record, tail) or problems.get(record.url, "")
            content = tail.content if isinstance(tail, FileTail) else b""
            content = content if kept_bytes + len(content) <= _MAX_KEPT_BYTES else b""
            kept_bytes += len(content)
            key = keys[record.url] if partitions else ""
            if content or problem or key:
                kept[record.url] = msgspec.msgpack.encode(ParquetFileNotes(content, problem, key))
    return united.facts(partitions), kept


def is_bare(name: str) -> bool:
    """Whether the name of a file has no ending."""
    return bool(name) and "." not in name


def leave_out_others(records: Sequence[ObjectRecord], memory: SchemaMemory) -> Reading[list[ObjectRecord]]:
    """Returns the files without those that have no ending and are not Parquet by their first bytes, such as LICENSE.

    If none would be left, it returns all files.
    """
    unread = [record for record in records if record.size and memory.find(record) is None]
    bare = [record for record in unread if is_bare(base_name(record.url))]
    others = set[str]()
    for first in range(0, len(bare), _BATCH_FILES):
        some = bare[first : first + _BATCH_FILES]
        starts = yield from read_ranges([Need(0, min(len(MAGIC), record.size), record) for record in some])
        others.update(record.url for record, start in zip(some, starts, strict=True) if start not in _MAGICS)
    return [record for record in records if record.url not in others] or list(records)


class _United:
    """Collects the schemas of files, one after the other, for the facts about the dataset.

    Args:
        columns: Names of the wanted fields; empty for all.
        memory: Gets the schema of each file, and has those that earlier surveys have read.
    """

    def __init__(self, columns: Sequence[str], memory: SchemaMemory) -> None:
        self._union = SchemaUnion(columns, "name the files that agree, or the columns that do (columns=)")
        self._memory = memory
        self._descriptions = Descriptions()
        # Descriptions of files that were read by an earlier survey, by their encoding.
        self._remembered: dict[bytes, Description] = {}
        # Encoded descriptions by `id` of the root of the schema, and whether there are rows.
        self._encoded: dict[tuple[int, bool], bytes] = {}
        # Reasons why a schema does not fit, by `id` of its root.
        self._problems: dict[int, str] = {}
        self._kept: list[SchemaNode] = []
        self._empty: tuple[ObjectRecord, Description] | None = None
        self._failure: ManifestError | None = None

    def add(self, record: ObjectRecord, tail: FileTail | ManifestError | None) -> str:
        """Adds a file, and returns why it does not fit into the dataset: "" if it does, or if its index will report it.

        Args:
            record: The file.
            tail: The end of the file, or the error of reading it; None if the memory has its schema.

        Raises:
            ManifestError: the columns are those of a table with a log of its valid rows.
        """
        if isinstance(tail, ManifestError):
            self._failure = self._failure or tail
            return ""
        try:
            found = self._recall(record) if tail is None else self._descriptions.read(tail.footer)
        except UnreadError as error:
            where = tail.footer_start if tail else 0
            self._failure = self._failure or make_refusal(record, f"has {error}", where, of_one=True)
            return ""
        except DamagedError as error:
            where = tail.footer_start + error.offset if tail else 0
            self._failure = self._failure or make_damage_error(record, f"in the footer, {error}", where)
            return ""
        # Equal descriptions are encoded once, in the form that `_recall` decodes.
        key = id(found.root), found.rows > 0
        if key not in self._encoded:
            # The root is kept, so that no other one gets its `id`.
            self._kept.append(found.root)
            features = found.metadata.get(HUGGING_FACE, b"")
            content = found.root.elements(), [*found.root.logicals().items()], features, found.rows > 0
            self._encoded[key] = msgspec.msgpack.encode(content)
        self._memory.add(record, self._encoded[key])
        if (writer := find_writer([child.element.name for child in found.root.children])) is not None:
            raise ManifestError(refuse_table(writer, record.url), url=record.url)
        if found.rows:
            return self._unite(record, found)
        self._empty = self._empty or (record, found)
        return ""

    def facts(self, partitions: Sequence[FieldSpec]) -> Facts:
        """Returns the facts about all files.

        Args:
            partitions: The fields that the paths of the files have.

        Raises:
            ConfigError: no file has a column of a wanted name.
            ManifestError: no file can be read; the error is that of the first one.
        """
        if self._union.first is None and self._empty is not None:
            self._unite(*self._empty)
        if self._union.first is None:
            assert self._failure is not None, "there is a file"
            raise self._failure
        return self._union.facts(partitions)

    def _recall(self, record: ObjectRecord) -> Description:
        """Returns the description of a file that an earlier survey has read."""
        content = self._memory.find(record)
        assert content is not None, "the file is remembered"
        if content not in self._remembered:
            elements, logicals, features, has_rows = _DESCRIPTION.decode(content)
            root = tree(elements, dict(logicals))
            self._remembered[content] = Description(root, int(has_rows), {HUGGING_FACE: features} if features else {})
        return self._remembered[content]

    def _unite(self, record: ObjectRecord, found: Description) -> str:
        """Adds the columns of a file; returns why they do not fit to those of other files, or "" if they do."""
        number = id(found.root)
        if number not in self._problems:
            # The root is kept, so that no other one gets its `id`.
            self._kept.append(found.root)
            metadata = found.metadata.get(HUGGING_FACE, b"null")
            self._problems[number] = self._union.add(record, found.root, metadata)
        return self._problems[number]
