"""Makes records of the pages of a Parquet block. The recoders of Parquet and of LeRobot use it (`ParquetRecoder`).

pyarrow reads the pages where they lie: it is given the footer of a made-up file that has only these pages. If all
primitives have exactly the rows of the block, it is one file; otherwise (runs of pages) it is one file for each
primitive, from whose table the rows are sliced. Long lists of numbers are read without pyarrow (`number_lists.py`), and
the other primitives of their block from one file each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from streamer.formats.base import Facts, Records
from streamer.formats.table.writer import Column, catch_decode_errors, constant_column, write_records
from streamer.tables.parquet import thrift
from streamer.tables.parquet.columns import column_of, lists_column
from streamer.tables.parquet.facts import Own, WantedColumns
from streamer.tables.parquet.fields import has_children
from streamer.tables.parquet.footer import MAGIC
from streamer.tables.parquet.number_lists import number_list, read_lists
from streamer.tables.parquet.pages import ParquetFileHint, PrimitiveHint
from streamer.tables.parquet.schema import SchemaNode, prune

_HINT = msgspec.msgpack.Decoder(list[PrimitiveHint] | ParquetFileHint)
# Number of different schemas of files for which a plan is kept.
_MAX_PLANS = 64
_CONVERTED = {
    "text": 0,
    "map": 1,
    "list": 3,
    "decimal": 5,
    **dict(zip(["u1", "<u2", "<u4", "<u8", "i1", "<i2"], range(11, 17), strict=True)),
}


class ParquetRecoder:
    """Makes records of the blocks of a dataset with these facts, as a `Recoder`."""

    def __init__(self, facts: Facts) -> None:
        self._fields = facts.fields
        self._wanted = WantedColumns.from_facts(facts)
        self._plans = {b"": _Plan(self._wanted, self._wanted.all)}

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Decodes one block and returns its records; raises RecodeError."""
        with catch_decode_errors(content, samples, "Parquet"):
            return write_records(self._fields, self.columns(content, samples, hint), samples)

    def columns(self, content: memoryview, samples: int, hint: bytes) -> list[Column]:
        """Decodes one block, with the arguments of `recode`; returns a column for each field, or raises RecodeError."""
        with catch_decode_errors(content, samples, "Parquet"):
            decoded = _HINT.decode(hint)
            file = decoded if isinstance(decoded, ParquetFileHint) else ParquetFileHint(decoded)
            key = msgspec.msgpack.encode((file.schema, file.logicals)) if file.schema else b""
            if key not in self._plans:
                if len(self._plans) > _MAX_PLANS:
                    del self._plans[next(name for name in self._plans if name)]
                self._plans[key] = _Plan(self._wanted, self._wanted.decode_own(file.schema, file.logicals))
            columns = self._plans[key].columns(content, file.primitives, samples)
            values = file.partitions or [None] * len(self._wanted.partitions)
            pairs = zip(self._wanted.partitions, values, strict=True)
            return [*columns, *(constant_column(spec, value, samples) for spec, value in pairs)]


class _Plan:
    """Decodes the columns in blocks of files that have the same schema.

    Args:
        wanted: the facts of the dataset.
        own: what these files have of them.
    """

    def __init__(self, wanted: WantedColumns, own: Own) -> None:
        self._wanted = wanted
        self._paths = own.paths
        known = [wanted.all.root.at(path) for path in wanted.paths]
        self._fields = list(zip(wanted.fields, own.nodes, known, strict=True))
        present = [(spec, node) for spec, node in zip(wanted.fields, own.nodes, strict=True) if node is not None]
        # Fields of lists that are read without pyarrow, by the number of their primitive.
        found = {node.primitive: number_list(spec, node, self._paths[node.primitive]) for spec, node in present}
        self._lists = {primitive: lists for primitive, lists in found.items() if lists is not None}
        nested_paths = {node.path for spec, node in present if has_children(spec, node)}
        self._schema = _schema(own.root, nested_paths)
        trees = [prune(own.root, [path[-1].path]) for path in self._paths]
        self._way_schemas = [_schema(tree, nested_paths) for tree in trees]

    def columns(self, content: memoryview, primitives: Sequence[PrimitiveHint], samples: int) -> list[Column]:
        """Decodes one block, and returns a column for each field that is no partition.

        Args:
            content: the bytes of the block.
            primitives: hints of the primitives, in the order of the schema.
            samples: rows of the block.

        Raises:
            ValueError: the hints do not fit the bytes or the schema. pyarrow raises errors of its own.
        """
        edges = list(accumulate((primitive.length for primitive in primitives), initial=0))
        if edges[-1] != len(content) or len(primitives) != len(self._paths):
            raise ValueError(f"{len(primitives)} primitives of {edges[-1]} bytes; there are {len(content)}")
        places = list(pairwise(edges))
        # The fields in `lists` are taken from the pages without pyarrow.
        lists: dict[int, Column] = {}
        for number, field in self._lists.items():
            start, stop = places[number]
            if found := read_lists(content[start:stop], primitives[number], field, samples):
                lists[number] = lists_column(found[0], field.kind, found[1])
        # The other primitives get tables with the rows of the block. Several may share one.
        chunks = [
            _column_chunk(path, primitive, start)
            for path, primitive, (start, _) in zip(self._paths, primitives, places, strict=True)
        ]
        if not lists and all(primitive.rows == samples for primitive in primitives):
            tables: list[pa.Table | None] = [_read(content, self._schema, chunks, samples)] * len(primitives)
        else:
            tables = [
                None
                if number in lists
                else _read(content, schema, [chunk], primitive.rows).slice(primitive.skipped, samples)
                for number, (schema, chunk, primitive) in enumerate(
                    zip(self._way_schemas, chunks, primitives, strict=True)
                )
            ]
        return [
            constant_column(spec, None, samples)
            if node is None
            else lists.get(node.primitive)
            or column_of(spec, node, known, tables=tables, rows=samples, meanings=self._wanted.meanings)
            for spec, node, known in self._fields
        ]


# ---------------------------------------------------------------- the metadata of a file of these pages


def _schema(node: SchemaNode, nested_paths: set[tuple[str, ...]]) -> list[thrift.Fields]:
    """Returns the SchemaElements of a node and all below it, for the made-up footer.

    Groups at and below `nested_paths` lose their meaning, so that pyarrow gives their lists and maps as plain groups.
    """
    plain = any(node.path[: len(path)] == path for path in nested_paths)
    fields: dict[int, tuple[int, object]] = {
        3: (thrift.I32, node.element.repetition),
        4: (thrift.BINARY, node.element.name.encode()),
    }
    if node.element.children:
        fields[5] = (thrift.I32, node.element.children)
    else:
        fields[1] = (thrift.I32, node.element.type)
        fields[2] = (thrift.I32, node.element.length)
    if node.element.meaning in _CONVERTED and not (plain and node.element.children):
        fields[6] = (thrift.I32, _CONVERTED[node.element.meaning])
        fields[7] = (thrift.I32, node.element.scale)
        fields[8] = (thrift.I32, node.element.precision)
    return [fields, *(element for child in node.children for element in _schema(child, nested_paths))]


def _column_chunk(path: Sequence[SchemaNode], primitive: PrimitiveHint, start: int) -> thrift.Fields:
    """Returns the ColumnChunk of a primitive whose pages begin at byte `start` of the block."""
    names = [node.element.name.encode() for node in path]
    details = {
        1: (thrift.I32, path[-1].element.type),
        2: (thrift.LIST, (thrift.I32, [0, 3])),
        3: (thrift.LIST, (thrift.BINARY, names)),
        4: (thrift.I32, primitive.codec),
        5: (thrift.I64, primitive.values),
        6: (thrift.I64, primitive.length),
        7: (thrift.I64, primitive.length),
        # If the first page is a dictionary, pyarrow finds that out itself.
        9: (thrift.I64, start),
    }
    return {2: (thrift.I64, 0), 3: (thrift.STRUCT, details)}


def _read(content: memoryview, schema: Sequence[thrift.Fields], chunks: Sequence[thrift.Fields], rows: int) -> pa.Table:
    """Returns the table of `rows` rows that pyarrow reads from a block, for a footer of these parts."""
    length = sum(chunk[3][1][7][1] for chunk in chunks)  # type: ignore[index]
    group = {1: (thrift.LIST, (thrift.STRUCT, chunks)), 2: (thrift.I64, length), 3: (thrift.I64, rows)}
    footer = thrift.write_struct(
        {
            1: (thrift.I32, 2),
            2: (thrift.LIST, (thrift.STRUCT, schema)),
            3: (thrift.I64, rows),
            4: (thrift.LIST, (thrift.STRUCT, [group])),
        }
    )
    metadata = pq.read_metadata(pa.BufferReader(MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC))
    file = pq.ParquetFile(
        pa.BufferReader(pa.py_buffer(content)),
        metadata=metadata,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
    )
    table: pa.Table = file.read(use_threads=False)
    if table.num_rows != rows:
        raise ValueError(f"pages of {table.num_rows} rows, the footer says {rows}")
    return table
