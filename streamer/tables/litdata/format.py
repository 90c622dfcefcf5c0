"""The format "litdata" reads chunks in all layouts that versions of LitData write.

`formats/registry.py` makes it for engine, recoders and workers. An `index.json` lists the chunks.

| layout | bytes | samples |
| --- | --- | --- |
| items | uint32 items, uint32 starts, items | plain; an item is a uint32 length of each leaf, then the leaves |
| packed items | as "items", but each item is compressed with Zstandard | plain, decompressed by the opener |
| packed | as "items", but the whole chunk is compressed with Zstandard | one block |
| frames | a table, and runs of items compressed with Zstandard | blocks are runs |
| arrow | as "items" with empty items, then an Arrow file, its length, a magic | blocks are record batches |

A leaf is a value in the nested dict, list or tuple that an item is. The layout of a dataset follows from the names of
chunks and the settings in `index.json`, and if these do not tell it, from the end of a chunk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from streamer.base.extras import require_extra
from streamer.formats.base import Block, Facts, Format, Opener, Recoder
from streamer.formats.compressed import check_library
from streamer.formats.failures import make_damage_error
from streamer.formats.reading import read_range, spans_between
from streamer.formats.table.records import TableOpener
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Source, Span, Survey, Surveying
from streamer.tables.index_json import ListedChunks, head_bytes, index_offsets, read_indexes
from streamer.tables.litdata.items import (
    ARROW_END,
    ItemOpener,
    ItemRecoder,
    RunRecoder,
    arrow_blocks,
    frame_blocks,
    table_bytes,
    tail_bytes,
)
from streamer.tables.litdata.leaves import column_specs, item_specs

_CHUNK = re.compile(r"(?:.*/)?chunk-\d+-\d+(\.[\w:]+)?\.bin")
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
# Items of a frame, if the index does not say it.
_RUN = 256
_TOKENS = "TokensLoader"
# Estimate of how many times longer compressed batches become: texts of 2.3 KB become 3.9 times as long (2026-11-22).
_GROWTH = 4


class _Config(msgspec.Struct):
    """The settings in an index.json of LitData, the same for all of its chunks."""

    data_format: list[str] | None = None
    data_spec: str | None = None
    compression: str | None = None
    compression_level: str | None = None
    compression_batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    ipc_compression: str | None = None
    encryption: Any = None
    item_loader: str | None = None
    types: Any = None


class _Chunk(msgspec.Struct):
    """A chunk in index.json: its path from there, number of items, and bytes (before whole compression)."""

    filename: str
    chunk_size: _Count
    chunk_bytes: _Count


class _LitDataIndex(msgspec.Struct):
    """The content of an index.json of LitData."""

    chunks: list[_Chunk]
    config: _Config


# Notes of a chunk: number of its items, and its bytes before it was compressed as a whole.
_NOTES = msgspec.json.Decoder(tuple[int, int])
_INDEX = msgspec.json.Decoder(_LitDataIndex)


class LitData(Format, frozen=True, forbid_unknown_fields=True):
    """Reads LitData's chunks.

    Attributes:
        block_size: number of tokens in a sample, for data written with LitData's `TokensLoader`. With None a sample is
            an item as it was written.
    """

    name = "litdata"
    numbered_keys = True
    block_size: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def accepts(self, key: str) -> bool:
        """Whether an object has the name of a chunk, compressed or not."""
        return _CHUNK.fullmatch(key) is not None

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads each `index.json`, and the end of the first chunk if that does not tell the layout.

        Raises:
            ManifestError: there is no index file, one cannot be used, or they describe different items.
        """
        indexes = yield from read_indexes(
            accepted, others, _INDEX.decode, lambda index: (chunk.filename for chunk in index.chunks)
        )
        found = []
        for listed, index in indexes:
            for chunk in index.chunks:
                record = listed.find(chunk.filename)
                if record is None:
                    raise listed.refusal(
                        f"{chunk.filename} is not among the {len(listed.objects)} chunks below its folder"
                    )
                found.append((listed, chunk, record))
        # Names and settings tell the layout. If they do not, it is "" until the end of a chunk is read.
        layout = "items"
        if found:
            config = indexes[0][1].config
            match = _CHUNK.fullmatch(found[0][1].filename)
            if match is not None and match[1]:
                layout = "packed"
            elif config.item_loader != _TOKENS:
                layout = {"batch": "frames", "sample": "packed items"}.get(config.compression_level or "", "")
        if not layout:
            first = found[0][2]
            end = yield from read_range(max(0, first.size - len(ARROW_END)), first.size, first)
            layout = "arrow" if end == ARROW_END else "items"
        facts = [_facts(listed, index.config, layout, self.block_size) for listed, index in indexes]
        for (listed, _), other in zip(indexes, facts, strict=True):
            if other != facts[0]:
                raise listed.refusal("its items have other fields, or another layout, than those of the first index")
        sources = {
            record.url: Source(record, msgspec.json.encode((chunk.chunk_size, chunk.chunk_bytes)))
            for _, chunk, record in found
        }
        return Survey([*sources.values()], facts[0], sum(_read_bytes(facts[0], chunk) for _, chunk, _ in found))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the samples of a chunk. Nothing is read if it is compressed as a whole, or its tokens are cut.

        Raises:
            ManifestError: the chunk does not have what the index file says.
        """
        record = source.record
        items, raw_bytes = _NOTES.decode(source.notes)
        layout = facts.notes["layout"]
        token_bytes = facts.notes["sample_bytes"]
        if layout != "packed" and record.size != raw_bytes:
            raise make_damage_error(record, f"{record.size} bytes, index.json says {raw_bytes}", 0)
        records = raw_bytes - head_bytes(items)
        if records < 0:
            raise make_damage_error(record, f"{raw_bytes} bytes are too few for {items} items", 0)
        if layout == "arrow":
            yield from arrow_blocks(record, items, facts.notes["growth"])
        elif layout == "frames":
            yield from frame_blocks(record, items, facts.notes["run"])
        elif layout == "packed":
            if not record.size:
                raise make_damage_error(record, f"no bytes, index.json says {items} items", 0)
            samples = records // token_bytes if token_bytes else items
            yield Block(((0, record.size),), samples, records, source.notes)
        elif token_bytes:
            for place in range(head_bytes(items), raw_bytes - token_bytes + 1, token_bytes):
                if place >= start:
                    yield Span(place, place + token_bytes)
        else:
            yield from spans_between((yield from index_offsets(record, items)), start)

    def opener(self, facts: Facts) -> Opener:
        """Returns what splits items into their leaves, or opens the records of rows.

        Raises:
            ConfigError: items are compressed one by one, and cramjam is not installed.
        """
        if facts.notes["layout"] == "arrow":
            return TableOpener(facts.fields)
        packed = facts.notes["layout"] == "packed items"
        if packed:
            check_library("zstd")
        return ItemOpener(facts.fields, whole=facts.notes["whole"], packed=packed)

    def recoder(self, facts: Facts) -> Recoder:
        """Returns what decompresses chunks, or makes records of the rows of Arrow's batches.

        Raises:
            ConfigError: cramjam or pyarrow is not installed.
        """
        if facts.notes["layout"] == "arrow":
            with require_extra("decoding Arrow chunks of LitData", field="format"):
                from streamer.tables.litdata.arrow_rows import ArrowRecoder
            return ArrowRecoder(facts.fields)
        check_library("zstd")
        return RunRecoder() if facts.notes["layout"] == "frames" else ItemRecoder(facts.notes["sample_bytes"])


def _facts(listed: ListedChunks, config: _Config, layout: str, block_size: int | None) -> Facts:
    """Returns the facts that an index file gives; raises ManifestError for items that are not read.

    Args:
        listed: the index file.
        config: the settings in it.
        layout: layout of the chunks, as in the table of the module.
        block_size: option of the format.
    """
    if config.encryption:
        raise listed.refusal("its chunks are encrypted, which is not read")
    if config.data_format is None or config.data_spec is None:
        raise listed.refusal("it does not say what its items consist of (data_format, data_spec)")
    tokens = config.item_loader == _TOKENS
    try:
        if layout == "arrow":
            fields = column_specs(config.types, config.data_spec, config.data_format)
        else:
            fields = item_specs(config.data_spec, config.data_format)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise listed.refusal(f"its items cannot be read: {error}") from error
    # Samples are the written items, unless their tokens are cut into blocks.
    sample_bytes = 0
    if block_size is not None:
        if not tokens or len(fields) != 1 or not fields[0].kind.endswith("[]"):
            raise listed.refusal(
                f"block_size={block_size} cuts what LitData's TokensLoader has written; this dataset has "
                f"{', '.join(f'{field.name}: {field.kind}' for field in fields)}"
            )
        sample_bytes = block_size * np.dtype(fields[0].kind.removesuffix("[]")).itemsize
    notes = {
        "layout": layout,
        "whole": tokens,
        "sample_bytes": sample_bytes,
        "run": config.compression_batch_size or _RUN,
        "growth": _GROWTH if config.ipc_compression else 1,
    }
    return Facts(fields, notes)


def _read_bytes(facts: Facts, chunk: _Chunk) -> int:
    """Returns the max bytes that the index will read of a chunk."""
    match facts.notes["layout"]:
        case "arrow":
            return tail_bytes(chunk.chunk_size)
        case "frames":
            return table_bytes(chunk.chunk_size, facts.notes["run"])
        case "packed":
            return 0
    return 0 if facts.notes["sample_bytes"] else head_bytes(chunk.chunk_size)
