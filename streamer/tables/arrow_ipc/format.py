"""Arrow IPC: rows are samples, blocks are runs of record batches, whose heads are the index.

A stream (what Hugging Face's `save_to_disk` writes) is gone through from message to message; a file (Feather 2, what
pyarrow's `new_file` writes) has a footer with the places of all messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from streamer.formats import window
from streamer.formats.base import Block, Facts, Format, Recoder
from streamer.formats.failures import DamagedError, damaged, needing, refused
from streamer.formats.names import base_name
from streamer.formats.reading import Reading, joined_ranges, read_ranges
from streamer.formats.table.partitions import partition_values
from streamer.formats.table.records import TableOpener, head_bytes
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Need, Source, Survey, SurveyContext, Surveying
from streamer.tables.arrow_ipc import messages
from streamer.tables.arrow_ipc.columns import Columns
from streamer.tables.arrow_ipc.messages import (
    BATCH,
    DICTIONARIES,
    DICTIONARY,
    END_BYTES,
    FILE_HINT,
    OWN_SCHEMA,
    PREFIX_BYTES,
    FileHint,
    Message,
    read_prefix,
)
from streamer.tables.arrow_ipc.survey import FileNotes, read_file_schema, survey_files
from streamer.tables.parquet.unify import DifferentError

_NOTES = msgspec.msgpack.Decoder(FileNotes)

# Heads of messages that are held at a time.
_HEADS_AT_ONCE = 4096
# How many times longer compressed buffers become, at most by experience (texts, 2026-11-22).
_GROWTH = 4
# All dictionaries of a file: each chunk has them.
_MOST_DICTIONARY_BYTES = 16 << 20


class Place(msgspec.Struct, frozen=True):
    """A message in a file: the half-open byte range, and its metadata."""

    start: int
    stop: int
    message: Message


class ArrowIPC(Format, frozen=True, forbid_unknown_fields=True):
    """Arrow IPC streams and files, Feather 2, and what Hugging Face's `save_to_disk` writes."""

    name = "arrow"
    numbered_keys = True
    recuts = True
    endings = (".arrow", ".feather", ".ipc")

    def accepts(self, key: str) -> bool:
        """Accepts files with these endings, but not the caches that datasets leaves beside them."""
        return super().accepts(key) and not base_name(key).startswith("cache-")

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the schemas of the files."""
        return (yield from survey_files(accepted, None)) if accepted else Survey([])

    def survey_with(
        self, context: SurveyContext, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]
    ) -> Surveying:
        """Reads the schemas of the files, whose partitions are the folders `key=value` below the dataset's."""
        return (yield from survey_files(accepted, context)) if accepted else Survey([])

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the record batches of one file; a column that it lacks has no values in its rows."""
        record = source.record
        notes = _NOTES.decode(source.notes) if source.notes else FileNotes()
        if notes.problem:
            raise refused(record, notes.problem, of_one=True)
        head, schema = yield from read_file_schema(record, notes.head)
        known = Columns.of(facts)
        places = yield from (
            _listed(record, memoryview(head.footer)) if head.footer else _walked(record, len(head.message))
        )
        if not any(place.message.rows for place in places):
            return
        try:
            known.check(schema)
            partitions = partition_values(known.partitions, notes.key)
        except DifferentError as error:
            first, own = error.types
            what = f"has a column {error.name!r} that is {own}, in the other files it is {first}"
            raise refused(record, what, of_one=True) from error
        except ValueError as error:
            raise refused(record, str(error), of_one=True) from error
        own_schema = head.message if (schema.types, schema.layouts) != known.first_layout else b""
        blocks = _blocks(record, places, source.chunk_bytes, head_bytes(facts.fields), is_file=bool(head.footer))
        for block in blocks:
            if known.is_described_by(schema):
                hint = block.hint + (OWN_SCHEMA + own_schema if own_schema else b"")
            else:
                file = FileHint(bool(block.hint), own_schema, partitions, known.layout)
                hint = FILE_HINT + msgspec.msgpack.encode(file)
            yield msgspec.structs.replace(block, hint=hint)

    def opener(self, facts: Facts) -> TableOpener:
        """Opens records of a table."""
        return TableOpener(facts.fields)

    def recoder(self, facts: Facts) -> Recoder:
        """Decodes record batches with pyarrow."""
        with needing("Arrow files are decoded with pyarrow", "parquet"):
            from streamer.tables.arrow_ipc.recode import BatchRecoder
        return BatchRecoder(facts)


def _walked(record: ObjectRecord, at: int) -> Reading[list[Place]]:
    """Reads the messages from byte `at` on, one after the other; without an end mark they end with the object."""
    places = list[Place]()
    held = window.Window(record.size, at, probe=True)
    while at < record.size:
        if record.size - at < PREFIX_BYTES:
            raise damaged(record, f"cut off in the head of a message, {record.size - at} bytes", at)
        try:
            yield from held.reach(at, at + PREFIX_BYTES)
            body = at + PREFIX_BYTES + read_prefix(memoryview(held.take(at, at + PREFIX_BYTES)))
            if body == at + PREFIX_BYTES:
                break
            if body > record.size:
                raise DamagedError(f"cut off in the head of a message, which ends at byte {body}")
            yield from held.reach(at, body)
            message = messages.read_message(memoryview(held.take(at + PREFIX_BYTES, body)))
            stop = body + message.body_bytes
            if stop > record.size:
                raise DamagedError(f"cut off in a message, which ends at byte {stop}")
        except ValueError as error:
            raise damaged(record, str(error), at) from error
        places.append(Place(at, stop, message))
        at = stop
    return places


def _listed(record: ObjectRecord, footer: memoryview) -> Reading[list[Place]]:
    """Reads the messages that the footer lists; their heads say how many rows they have."""
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
        places = list[Place]()
        for first in range(0, len(blocks), _HEADS_AT_ONCE):
            some = blocks[first : first + _HEADS_AT_ONCE].tolist()
            heads = yield from read_ranges([Need(place, place + head, record) for place, head, _, _ in some])
            places += [_listed_place(block, head) for block, head in zip(some, heads, strict=True)]
        return places
    except ValueError as error:
        raise damaged(record, str(error), record.size) from error


def _listed_place(block: tuple[int, int, int, int], head: memoryview) -> Place:
    place, head_length, _, body = block
    message = messages.read_message(head[PREFIX_BYTES : PREFIX_BYTES + read_prefix(head)])
    if message.body_bytes != body:
        raise DamagedError(f"a message of {message.body_bytes} bytes at byte {place}; the footer says {body}")
    return Place(place, place + head_length + body, message)


def _blocks(
    record: ObjectRecord, places: Sequence[Place], chunk_bytes: int, row_bytes: int, *, is_file: bool
) -> Iterator[Block]:
    """Yields runs of record batches, each about as long as a chunk, with the dictionaries before them.

    Those of a file do not change, wherever they are in it.
    """
    batches = [place for place in places if place.message.kind == BATCH and place.message.rows]
    dictionaries = [place for place in places if place.message.kind == DICTIONARY]
    if other := next((place for place in places if place.message.kind not in {BATCH, DICTIONARY}), None):
        raise damaged(record, f"a message of kind {other.message.kind} among record batches", other.start)
    if batches and dictionaries and not is_file and dictionaries[-1].start > batches[0].start:
        raise refused(
            record, "has dictionaries that change, which are not read: write it as a file", dictionaries[-1].start
        )
    if sum(place.stop - place.start for place in dictionaries) > _MOST_DICTIONARY_BYTES:
        raise refused(
            record,
            f"has dictionaries of more than {_MOST_DICTIONARY_BYTES} bytes, which each chunk would have: write their "
            "columns as they are (cast, dictionary_decode)",
            dictionaries[0].start,
        )
    run = list[Place]()
    for batch in batches:
        if run and batch.stop - run[0].start > chunk_bytes:
            yield _block(dictionaries, run, row_bytes)
            run = []
        run.append(batch)
    if run:
        yield _block(dictionaries, run, row_bytes)


def _block(dictionaries: Sequence[Place], run: Sequence[Place], row_bytes: int) -> Block:
    ranges = joined_ranges((place.start, place.stop) for place in (*dictionaries, *run))
    rows = sum(place.message.rows for place in run)
    values = sum(place.message.body_bytes * (_GROWTH if place.message.compressed else 1) for place in run)
    return Block(ranges, rows, values + rows * row_bytes, DICTIONARIES if dictionaries else b"")
