"""The format "arrow" (Arrow IPC): rows are samples, and blocks are runs of record batches.

`formats/registry.py` makes it for engine, recoders and workers. The index comes from the heads of the batches'
messages. A stream, as Hugging Face's `save_to_disk` writes it, is walked from message to message. A file (Feather 2,
and what pyarrow's `new_file` writes) has a footer with the places of all messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from streamer.base.extras import require_extra
from streamer.formats.base import Block, Facts, Format, Recoder
from streamer.formats.failures import DamagedError, make_damage_error, make_refusal
from streamer.formats.names import base_name
from streamer.formats.reading import Range, Reading, Window, join_ranges, read_ranges
from streamer.formats.table.partitions import partition_values
from streamer.formats.table.records import TableOpener, head_bytes
from streamer.manifest.blocks import LONGEST_HINT
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Need, Source, Survey, SurveyContext, Surveying
from streamer.tables.arrow_ipc import messages
from streamer.tables.arrow_ipc.messages import (
    BATCH,
    DICTIONARIES,
    DICTIONARY,
    END_BYTES,
    FILE_HINT,
    OWN_SCHEMA,
    PREFIX_BYTES,
    ArrowFileHint,
    ArrowMessage,
    read_prefix,
)
from streamer.tables.arrow_ipc.schema import ArrowColumns, Schema, read_schema
from streamer.tables.arrow_ipc.survey import ArrowFileNotes, FileHead, read_file_schema, survey_files
from streamer.tables.parquet.unify import DifferentError

_NOTES = msgspec.msgpack.Decoder(ArrowFileNotes)

# Number of messages whose heads are in memory at a time.
_HEADS_AT_ONCE = 4096
# Estimate of how many times longer compressed buffers become: the maximum for texts (2026-11-22).
_GROWTH = 4
# Max bytes of all dictionaries of a file, because each of its chunks has them all.
_MAX_DICTIONARY_BYTES = 16 << 20


class MessagePlace(msgspec.Struct, frozen=True):
    """A message in a file or stream.

    Attributes:
        start: Byte of the object at which the message begins.
        stop: Byte at which its body ends.
        message: What its metadata say.
        ranges: Byte ranges of the object with what is wanted of the message, in order.
    """

    start: int
    stop: int
    message: ArrowMessage
    ranges: tuple[Range, ...]

    @property
    def fetch_bytes(self) -> int:
        """Bytes of all ranges together."""
        return sum(stop - start for start, stop in self.ranges)


class _Chosen(msgspec.Struct, frozen=True):
    """The wanted columns of one object.

    Attributes:
        buffers: Numbers of the buffers of each column of the object; see `Schema`.
        columns: Numbers of the wanted columns, or None if all are wanted.
    """

    buffers: Sequence[tuple[int, int]]
    columns: Sequence[int] | None

    def place(self, start: int, metadata: memoryview, message: ArrowMessage) -> MessagePlace:
        """Returns the place of a message that begins at byte `start` of the object."""
        body = start + PREFIX_BYTES + len(metadata)
        stop = body + message.body_bytes
        if self.columns is None or message.kind != BATCH:
            return MessagePlace(start, stop, message, ((start, stop),))
        parts = messages.find_parts(metadata, self.buffers, self.columns)
        wanted = [(body + first, body + last) for first, last in parts.ranges]
        return MessagePlace(start, stop, message, join_ranges([(start, body), *wanted]))


class ArrowIPC(Format, frozen=True, forbid_unknown_fields=True):
    """Reads Arrow IPC streams and files, Feather 2, and what Hugging Face's `save_to_disk` writes.

    Attributes:
        columns: Names of the wanted fields ("image", "meta.caption", or "meta" for all parts of a struct), in any
            order. Empty for all fields. The bytes of other columns are not fetched.
    """

    name = "arrow"
    numbered_keys = True
    recuts = True
    endings = (".arrow", ".feather", ".ipc")
    columns: tuple[str, ...] = ()

    def accepts(self, key: str) -> bool:
        """Whether an object has one of the endings, and is no cache ("cache-...") of Hugging Face's datasets."""
        return super().accepts(key) and not base_name(key).startswith("cache-")

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the schemas of the files; folders are no partitions. Raises the errors of `survey_files`."""
        return (yield from survey_files(accepted, self.columns)) if accepted else Survey([])

    def survey_with(
        self, context: SurveyContext, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]
    ) -> Surveying:
        """Reads the schemas of the files; folders `key=value` below the dataset's folder are partitions.

        Raises the errors of `survey_files`.
        """
        return (yield from survey_files(accepted, self.columns, context)) if accepted else Survey([])

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the record batches of one file, as blocks. Its rows have no values of a column that the file lacks.

        Raises:
            ManifestError: the file cannot be a part of the dataset, is damaged, has dictionaries that change, or has
                dictionaries or a schema that are too long.
        """
        record = source.record
        notes = _NOTES.decode(source.notes) if source.notes else ArrowFileNotes()
        if notes.problem:
            raise make_refusal(record, notes.problem, of_one=True)
        head, schema = yield from read_file_schema(record, notes.head)
        known = ArrowColumns.from_facts(facts)
        chosen = _Chosen(schema.buffers, known.find_numbers(schema) if self.columns else None)
        places = yield from (
            _list_messages(record, memoryview(head.footer), chosen)
            if head.footer
            else _walk_messages(record, len(head.message), chosen)
        )
        if not any(place.message.rows for place in places):
            return
        try:
            known.check(schema)
            partitions = partition_values(known.partitions, notes.key)
        except DifferentError as error:
            first, own = error.types
            what = f"has a column {error.name!r} that is {own}, in the other files it is {first}"
            raise make_refusal(record, what, of_one=True) from error
        except ValueError as error:
            raise make_refusal(record, str(error), of_one=True) from error
        own_schema = b""
        if (schema.types, schema.layouts) != known.first_layout:
            own_schema = _cut_schema(head, schema)
        blocks = _blocks(record, places, source.chunk_bytes, head_bytes(facts.fields), is_file=bool(head.footer))
        for block in blocks:
            if known.matches(schema):
                hint = block.hint + (OWN_SCHEMA + own_schema if own_schema else b"")
            else:
                file = ArrowFileHint(bool(block.hint), own_schema, partitions, known.layout)
                hint = FILE_HINT + msgspec.msgpack.encode(file)
            if len(hint) > LONGEST_HINT:
                what = f"has a schema of {len(own_schema)} bytes that is not that of the other files"
                remedy = f"each of its blocks would carry it, and at most {LONGEST_HINT} bytes can be carried"
                raise make_refusal(record, f"{what}; {remedy}: write the files with one schema", of_one=True)
            yield msgspec.structs.replace(block, hint=hint)

    def opener(self, facts: Facts) -> TableOpener:
        """Returns what opens the records of rows."""
        return TableOpener(facts.fields)

    def narrow(self, facts: Facts, fields: Collection[str]) -> ArrowIPC:
        """Returns the format with these columns only, never None: each column is in ranges of its own."""
        return msgspec.structs.replace(self, columns=tuple(sorted(fields)))

    def recoder(self, facts: Facts) -> Recoder:
        """Returns what decodes record batches with pyarrow; raises ConfigError if pyarrow is not installed."""
        with require_extra("decoding Arrow files", field="format"):
            from streamer.tables.arrow_ipc.recode import BatchRecoder
        return BatchRecoder(facts)


def _cut_schema(head: FileHead, schema: Schema) -> bytes:
    """Returns the message of a file's schema, without the places of its batches if these can be cut out."""
    if not head.footer:
        return head.message
    cut = messages.cut_schema_message(memoryview(head.footer))
    try:
        found = read_schema(memoryview(cut))
    except ValueError:
        # The writer has put the tables of the footer in another order.
        return head.message
    is_same = (found.types, found.layouts, found.features) == (schema.types, schema.layouts, schema.features)
    return cut if is_same else head.message


def _walk_messages(record: ObjectRecord, at: int, chosen: _Chosen) -> Reading[list[MessagePlace]]:
    """Walks over the messages of a stream from byte `at` on, up to the end mark or the end of the object.

    Raises:
        ManifestError: the stream is damaged or cut off.
    """
    places = list[MessagePlace]()
    held = Window(record.size, at, probe=True)
    while at < record.size:
        if record.size - at < PREFIX_BYTES:
            raise make_damage_error(record, f"cut off in the head of a message, {record.size - at} bytes", at)
        try:
            yield from held.reach(at, at + PREFIX_BYTES)
            body = at + PREFIX_BYTES + read_prefix(memoryview(held.take(at, at + PREFIX_BYTES)))
            if body == at + PREFIX_BYTES:
                break
            if body > record.size:
                raise DamagedError(f"cut off in the head of a message, which ends at byte {body}")
            yield from held.reach(at, body)
            metadata = memoryview(held.take(at + PREFIX_BYTES, body))
            message = messages.read_message(metadata)
            stop = body + message.body_bytes
            if stop > record.size:
                raise DamagedError(f"cut off in a message, which ends at byte {stop}")
            places.append(chosen.place(at, metadata, message))
        except ValueError as error:
            raise make_damage_error(record, str(error), at) from error
        at = stop
    return places


def _list_messages(record: ObjectRecord, footer: memoryview, chosen: _Chosen) -> Reading[list[MessagePlace]]:
    """Reads the heads of the messages that the footer of a file lists, in the order of the file.

    Raises:
        ManifestError: the footer or a message is damaged.
    """
    try:
        dictionaries, batches = messages.read_footer(footer)
        blocks = np.sort(np.concatenate([dictionaries, batches]), order="place")
        stops = blocks["place"] + blocks["head"] + blocks["body"]
        edges = np.concatenate([[messages.START_BYTES], stops, [record.size - len(footer) - END_BYTES]])
        if (
            (blocks["head"] < PREFIX_BYTES).any()
            or (blocks["body"] < 0).any()
            or (blocks["place"] < edges[:-2]).any()
            or (np.diff(edges) < 0).any()
        ):
            raise DamagedError("a footer whose messages are not one behind the other")
        places = list[MessagePlace]()
        for first in range(0, len(blocks), _HEADS_AT_ONCE):
            some = blocks[first : first + _HEADS_AT_ONCE].tolist()
            heads = yield from read_ranges([Need(place, place + head, record) for place, head, _, _ in some])
            for (place, head_length, _, body), head in zip(some, heads, strict=True):
                metadata = head[PREFIX_BYTES : PREFIX_BYTES + read_prefix(head)]
                message = messages.read_message(metadata)
                if message.body_bytes != body:
                    raise DamagedError(
                        f"a message of {message.body_bytes} bytes at byte {place}; the footer says {body}"
                    )
                if len(metadata) + PREFIX_BYTES != head_length:
                    raise DamagedError(
                        f"a head of {len(metadata) + PREFIX_BYTES} bytes at byte {place}; the footer says {head_length}"
                    )
                places.append(chosen.place(place, metadata, message))
        return places
    except ValueError as error:
        raise make_damage_error(record, str(error), record.size) from error


def _blocks(
    record: ObjectRecord, places: Sequence[MessagePlace], chunk_bytes: int, row_bytes: int, *, is_file: bool
) -> Iterator[Block]:
    """Yields blocks that are runs of record batches, each about as long as a chunk, with all dictionaries before them.

    In a file dictionaries do not change, and may lie anywhere. In a stream they must be before the first batch.

    Args:
        record: the object.
        places: its messages, in order.
        chunk_bytes: bytes of a chunk.
        row_bytes: bytes of a record besides the values.
        is_file: whether the object is a file, not a stream.

    Raises:
        ManifestError: dictionaries change or are too long, or a message is of another kind.
    """
    batches = [place for place in places if place.message.kind == BATCH and place.message.rows]
    dictionaries = [place for place in places if place.message.kind == DICTIONARY]
    if other := next((place for place in places if place.message.kind not in {BATCH, DICTIONARY}), None):
        raise make_damage_error(record, f"a message of kind {other.message.kind} among record batches", other.start)
    if batches and dictionaries and not is_file and dictionaries[-1].start > batches[0].start:
        raise make_refusal(
            record, "has dictionaries that change, which are not read: write it as a file", dictionaries[-1].start
        )
    if sum(place.stop - place.start for place in dictionaries) > _MAX_DICTIONARY_BYTES:
        raise make_refusal(
            record,
            f"has dictionaries of more than {_MAX_DICTIONARY_BYTES} bytes, which each chunk would have: write their "
            "columns as they are (cast, dictionary_decode)",
            dictionaries[0].start,
        )
    run = list[MessagePlace]()
    filled = 0
    for batch in batches:
        # If whole batches are wanted, the bytes between them are fetched, too.
        is_whole = batch.ranges == ((batch.start, batch.stop),)
        fetch_bytes = batch.stop - run[0].start if run and is_whole else filled + batch.fetch_bytes
        if run and fetch_bytes > chunk_bytes:
            yield _block(dictionaries, run, row_bytes)
            run = []
            filled = 0
        run.append(batch)
        filled += batch.fetch_bytes
    if run:
        yield _block(dictionaries, run, row_bytes)


def _block(dictionaries: Sequence[MessagePlace], run: Sequence[MessagePlace], row_bytes: int) -> Block:
    """Returns the block of a run of record batches, with an estimate of the bytes of their records."""
    ranges = join_ranges(part for place in (*dictionaries, *run) for part in place.ranges)
    rows = sum(place.message.rows for place in run)
    values = 0
    for place in run:
        head_bytes = place.stop - place.start - place.message.body_bytes
        values += (place.fetch_bytes - head_bytes) * (_GROWTH if place.message.compressed else 1)
    return Block(ranges, rows, values + rows * row_bytes, DICTIONARIES if dictionaries else b"")
