"""Zarr of versions 2 and 3: rows of arrays are samples, the index is the metadata, and the indexes of shards.

Rows of one array without codecs, in chunks of whole rows, are read where they lie. All others are put together once,
before the cache: the chunks of a run of rows, which are many objects.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

import msgspec

from streamer.errors import ManifestError
from streamer.formats.base import Facts, Opener, Recoder
from streamer.formats.failures import make_refusal
from streamer.formats.names import base_name
from streamer.formats.reading import Reading, read_ranges
from streamer.formats.windows import RowFormat
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, LeftOut, Need, Source, Survey, Surveying
from streamer.tables.npy import FIELD, ArrayRows
from streamer.tables.tiles import ArraysError, TileRecoder, blocks_of, common_rows, facts_of_columns, opener_of
from streamer.tables.zarr.codecs import Stored, ZarrChunkDecoder
from streamer.tables.zarr.metadata import CHUNK_NAME, NAMES, ZarrArray, nodes_of, read_metadata

_CHOOSE = 'name the arrays that you want: Zarr(arrays={"image": "images"})'
_MAX_METADATA_BYTES = 16 << 20
# Objects of the longest array that are indexed together.
_TOGETHER = 1024


_BESIDE = ("before", "after")


class _ZarrNotes(msgspec.Struct, frozen=True):
    """The survey's facts about an object: its rows, if they are plain.

    Else it has the first and last row that are found here, and the objects of the store with these rows, by field.
    `before` and `after` are of stores without an object, whose rows come before and after those of this one.
    """

    plain: ArrayRows | None = None
    rows: tuple[int, int] = (0, 0)
    stored: dict[str, Stored] = msgspec.field(default_factory=dict)
    before: list[_ZarrNotes] = msgspec.field(default_factory=list)
    after: list[_ZarrNotes] = msgspec.field(default_factory=list)

    def encode(self) -> bytes:
        """Encodes with the JSON of the standard library: a url may have bytes that are not UTF-8."""
        # Empty fields are left out, as earlier versions did.
        found = {name: value for name, value in msgspec.to_builtins(self).items() if value or name not in _BESIDE}
        return json.dumps(found).encode()


class Zarr(RowFormat, frozen=True, forbid_unknown_fields=True):
    """Zarr stores: a sample is a row along axis 0 of one array, or of several ones of a group, of the same length.

    Attributes:
        arrays: paths in the group by the name of their field, {"image": "images"}; empty: all arrays of the group but
            scalars, by their names. Of a store that is one array, the rows are the field "array".
    """

    name = "zarr"
    numbered_keys = True
    arrays: dict[str, str] = msgspec.field(default_factory=dict)

    def accepts(self, key: str) -> bool:
        """Accepts objects with names of chunks."""
        return CHUNK_NAME.fullmatch(base_name(key)) is not None

    def explain_empty(self, keys: Sequence[str]) -> str:
        """Says that nothing was written but metadata: samples are read of objects, and here is none."""
        if not any(base_name(key) in NAMES for key in keys):
            return ""
        return (
            ": the store has metadata and no chunk, so that all of its values are the fill value; write at least one "
            "chunk (config={'write_empty_chunks': True}), or give the urls of other stores beside it"
        )

    def survey_rows(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the metadata; the listing says which chunks there are."""
        nodes = nodes_of(others)
        if not nodes:
            raise ManifestError(
                f"there is no zarr store: none of {', '.join(NAMES)} is among the objects", objects=len(accepted)
            )
        objects = sorted(accepted, key=_url)
        stores: list[tuple[dict[str, Stored], ObjectRecord]] = []
        facts = Facts()
        # Nodes that are in no other one are the roots.
        roots: list[str] = []
        for node in sorted(nodes):
            if not roots or not node.startswith(roots[-1]):
                roots.append(node)
        for root in roots:
            sidecar = others[root + nodes[root]]
            with _errors_of(sidecar):
                found = yield from self._arrays(root, nodes, others)
                stored = {name: _find_objects(objects, node, array) for name, (node, array) in found.items()}
                own = facts_of_columns({name: each.column() for name, each in stored.items()})
                if stores and own != facts:
                    raise ArraysError(f"it has rows of {own.fields}, a store before it of {facts.fields}")
                common_rows({name: each.column() for name, each in stored.items()})
                facts = own
                stores.append((stored, sidecar))
        sources, left_out = _sources_of(stores, windows=self.window is not None)
        # The shards of other arrays than the longest may be read in two places.
        shards = [each.array.index_bytes * len(each.objects) for stored, _ in stores for each in stored.values()]
        return Survey(sources, facts, read_bytes=2 * sum(shards), left_out=left_out)

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """Finds the rows whose first object this is."""
        if not source.notes:
            return
        notes = msgspec.convert(json.loads(source.notes), _ZarrNotes)
        if notes.plain:
            yield from notes.plain.spans(start)
            return
        with _errors_of(source.record):
            for each in (*notes.before, notes, *notes.after):
                columns = {}
                for name, stored in each.stored.items():
                    columns[name] = stored.column((yield from stored.chunks()))
                yield from blocks_of(columns, each.rows, source.chunk_bytes)

    def narrow(self, facts: Facts, fields: Collection[str]) -> Zarr:
        """Returns the format of these arrays, whose chunks are objects of their own; see `Format.narrow`."""
        if len(facts.fields) == 1:
            # The only array may be the root, which has no path.
            return self
        return msgspec.structs.replace(self, arrays={name: self.arrays.get(name, name) for name in sorted(fields)})

    def open_rows(self, facts: Facts) -> Opener:
        """Opens rows."""
        return opener_of(facts)

    def recode_rows(self, facts: Facts) -> Recoder:
        """Decompresses chunks."""
        return TileRecoder(facts, ZarrChunkDecoder)

    def _arrays(
        self, root: str, nodes: Mapping[str, str], others: Mapping[str, ObjectRecord]
    ) -> Reading[dict[str, tuple[str, ZarrArray]]]:
        """Reads the wanted arrays of a store, each with the address of its node, by the name of their field."""
        if self.arrays:
            wanted = {name: f"{root}{path.strip('/')}/" for name, path in self.arrays.items()}
        else:
            inside = {node[len(root) : -1]: node for node in sorted(nodes) if node.startswith(root)}
            wanted = {name or FIELD: node for name, node in inside.items() if "/" not in name}
        if missing := next((node for node in wanted.values() if node not in nodes), None):
            there = ", ".join(
                sorted(node[len(root) :] for node in nodes if node.startswith(root) and node != root)[:20]
            )
            raise ArraysError(f"it has no array {missing[len(root) :]!r}, but {there}")
        records = [others[node + nodes[node]] for node in wanted.values()]
        if large := next((record for record in records if not 0 < record.size <= _MAX_METADATA_BYTES), None):
            raise make_refusal(large, f"has {large.size} bytes; metadata have up to {_MAX_METADATA_BYTES}")
        answers = yield from read_ranges([Need(0, record.size, record) for record in records])
        found = {}
        for (name, node), record, content in zip(wanted.items(), records, answers, strict=True):
            with _errors_of(record):
                array = read_metadata(nodes[node], content)
            if array is not None and (array.shape or self.arrays):
                found[name] = (node, array)
        if not found:
            raise ArraysError("it has no arrays but in groups of its own")
        return found


def _url(record: ObjectRecord) -> str:
    return record.url


def _find_objects(objects: Sequence[ObjectRecord], node: str, array: ZarrArray) -> Stored:
    """Returns the objects of an array, in the order of their first items."""
    below = objects[bisect_left(objects, node, key=_url) : bisect_left(objects, node[:-1] + "0", key=_url)]
    found = [(origin, record) for record in below if (origin := array.origin(record.url[len(node) :])) is not None]
    found.sort(key=lambda pair: pair[0])
    return Stored(array, [origin for origin, _ in found], [record for _, record in found])


def _sources_of(
    stores: Sequence[tuple[dict[str, Stored], ObjectRecord]], *, windows: bool
) -> tuple[list[Source], list[LeftOut]]:
    """Returns the objects of all stores with which runs of rows are indexed, and the stores that have no place.

    The rows of a store without an object, all of the fill value, are indexed with an object of the store before it, or
    behind it. Windows go on over the rows of an object, so that they have no such store.
    """
    # Sources by store, each of which begins with those that have rows.
    found: list[list[Source]] = []
    first: list[_ZarrNotes] = []
    left_out: list[LeftOut] = []
    has_unwritten = any(_is_unwritten(stored) for stored, _ in stores)
    for stored, sidecar in stores:
        if not _is_unwritten(stored):
            with _errors_of(sidecar):
                own = _sources(stored, sidecar, together=windows, plain=not has_unwritten)
            if first:
                own[0] = _add_stores(own[0], first, [])
                first = []
            found.append(own)
            continue
        if windows:
            what = f"{sidecar.url}: none of its chunks was written, and windows are read of stores that have some"
            left_out.append(LeftOut(what))
            continue
        rows = common_rows({name: each.column() for name, each in stored.items()})
        notes = _ZarrNotes(None, (0, rows), dict(stored))
        if not found:
            first.append(notes)
            continue
        place = max(place for place, source in enumerate(found[-1]) if source.notes)
        found[-1][place] = _add_stores(found[-1][place], [], [notes])
    if not found:
        with _errors_of(stores[0][1]):
            raise ArraysError("its chunks were never written, nor those of another store")
    return [source for own in found for source in own], left_out


def _is_unwritten(stored: Mapping[str, Stored]) -> bool:
    return not any(each.objects for each in stored.values())


def _add_stores(source: Source, before: list[_ZarrNotes], after: list[_ZarrNotes]) -> Source:
    """Returns a source with rows of other stores."""
    notes = msgspec.convert(json.loads(source.notes), _ZarrNotes)
    notes = msgspec.structs.replace(notes, before=[*notes.before, *before], after=[*notes.after, *after])
    return msgspec.structs.replace(source, notes=notes.encode())


def _sources(stored: Mapping[str, Stored], sidecar: ObjectRecord, *, together: bool, plain: bool) -> list[Source]:
    """Returns the objects of a store with which runs of rows are indexed, in the order of the rows, then the others.

    Args:
        stored: Arrays by field.
        sidecar: Metadata of the store.
        together: Whether all rows are indexed with the first one, because samples go on from object to object.
        plain: Whether rows may be samples as they are stored.
    """
    columns = {name: each.column() for name, each in stored.items()}
    rows = common_rows(columns)
    longest = max(stored.values(), key=lambda each: (bool(each.objects), each.column().row_bytes))
    if plain and len(stored) == 1 and not longest.array.shard and not together:
        runs = longest.column(longest.tiles()).plain_rows()
        if runs is not None:
            pairs = zip(longest.objects, runs, strict=True)
            return [Source(record, _ZarrNotes(run).encode(), sidecar) for record, run in pairs]
    firsts: list[int] = []
    before = -1
    for place, origin in enumerate(longest.origins):
        if origin[0] != before and (not firsts or (place - firsts[-1] >= _TOGETHER and not together)):
            firsts.append(place)
        before = origin[0]
    tops = {name: [origin[0] for origin in each.origins] for name, each in stored.items()}
    edges = [0, *(longest.origins[place][0] for place in firsts[1:]), rows]
    sources = [
        Source(longest.objects[place], _ZarrNotes(None, span, _between(stored, tops, *span)).encode(), sidecar)
        for place, span in zip(firsts, pairwise(edges), strict=True)
    ]
    named = {source.record.url for source in sources}
    return sources + [
        Source(record, sidecar=sidecar)
        for each in stored.values()
        for record in each.objects
        if record.url not in named
    ]


def _between(stored: Mapping[str, Stored], tops: Mapping[str, list[int]], first: int, stop: int) -> dict[str, Stored]:
    """Returns the objects that have a part of these rows; `tops` has the first row of each."""
    found = {}
    for name, each in stored.items():
        begin = first - each.array.object_shape[0] + 1
        among = slice(bisect_left(tops[name], begin), bisect_left(tops[name], stop))
        found[name] = Stored(each.array, each.origins[among], each.objects[among])
    return found


@contextmanager
def _errors_of(record: ObjectRecord) -> Iterator[None]:
    """Names the object of an error."""
    try:
        yield
    except ArraysError as error:
        raise make_refusal(record, f"cannot be read by rows: {error}; {_CHOOSE}") from error
