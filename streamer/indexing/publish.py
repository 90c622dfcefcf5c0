"""Writes manifest folders: from rows, or from a manifest that is open.

`indexing/build.py`, `indexing/arrange.py` and `shards/finish.py` write rows. The engine writes a lost manifest again,
and a manifest at another endpoint.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from streamer.indexing.rows import ManifestRows
from streamer.manifest.arrow_ipc.writer import write_table
from streamer.manifest.chunking import key_at_endpoint
from streamer.manifest.columns import KEY_BYTES, digest_of, write_name
from streamer.manifest.layout import ROOT_NAME, ManifestContent, ManifestPart, TableRun, encode_root, file_name
from streamer.manifest.model import Facts
from streamer.manifest.staging import settle, workplace
from streamer.manifest.table import Manifest
from streamer.manifest.validation import base_keys, foreign, stamp_keys


def publish(rows: ManifestRows, root: Path) -> Path:
    """Writes the manifest folder `<root>/<digest>/` and returns it; an intact one of that name stays.

    Args:
        rows: the whole dataset.
        root: folder of manifests on the local disk.

    Raises:
        ManifestError: the folder cannot be written, or there are too many urls or classes for root.json.
    """
    with workplace(root) as place:
        parts = []
        file_bytes = {}
        for number, part in enumerate(rows.parts()):
            runs = {}
            for name, table in part.tables.items():
                path = place / file_name(name, number)
                file_bytes[path.name] = write_table(path, table)
                count = len(next(iter(table.values())))
                runs[name] = TableRun(part.first[name], count, digest_of(table))
            parts.append(ManifestPart(runs))
        indexer = rows.indexer
        content = ManifestContent(
            format=rows.format,
            whole_objects=rows.whole_objects,
            base=rows.listing.base,
            classes=list(map(write_name, rows.listing.classes)) if rows.whole_objects else [],
            chunk_bytes=rows.chunk_bytes,
            total_bytes=int(rows.listing.sizes.sum()),
            parts=parts,
            codec=int(rows.codec),
            samples=rows.samples if rows.recoded else 0,
            revision=indexer.revision if indexer else 0,
            options=indexer.options if indexer else {},
            facts=None if rows.facts == Facts() else rows.facts,
        )
        (place / ROOT_NAME).write_bytes(encode_root(content, rows.listing.urls, file_bytes))
        folder = settle(place, root / content.digest())
        stamp_keys(folder)
        return folder


def publish_again(manifest: Manifest, root: Path) -> Path:
    """Writes the folder `<root>/<digest>/` of an open manifest whose files another program has removed; returns it.

    Raises:
        ManifestError: the folder cannot be written.
    """
    with workplace(root) as place:
        paths = [
            (place / file_name(name, number), table)
            for number, tables in enumerate(manifest.tables)
            for name, table in tables.items()
        ]
        file_bytes = {path.name: write_table(path, table) for path, table in paths}
        (place / ROOT_NAME).write_bytes(encode_root(manifest.content, manifest.urls, file_bytes))
        return settle(place, root / manifest.digest, durable=False)


def publish_at(manifest: Manifest, root: Path, endpoint: str) -> Path:
    """Writes the manifest of the same objects at another endpoint; returns its folder, `<root>/<digest>/`.

    The keys of its chunks include the endpoint. All else is the same.

    Args:
        manifest: manifest of the objects, at any endpoint.
        root: folder of manifests on the local disk.
        endpoint: address that a client of a shared engine has named.

    Raises:
        ManifestCorruptError: the key of a chunk is not that of its objects and ranges.
        ManifestError: the folder cannot be written.
    """
    keys = bytearray()
    for chunk, key in enumerate(base_keys(manifest)):
        if key is None:
            raise foreign(manifest, chunk)
        keys += key_at_endpoint(key, endpoint)
    column = np.frombuffer(bytes(keys), np.uint8).reshape(-1, KEY_BYTES)
    with workplace(root) as place:
        parts = []
        file_bytes = {}
        for number, (part, tables) in enumerate(zip(manifest.content.parts, manifest.tables, strict=True)):
            run = part.tables["chunks"]
            chunks = {**tables["chunks"], "key": column[run.first : run.first + run.count]}
            for name, table in {**tables, "chunks": chunks}.items():
                path = place / file_name(name, number)
                file_bytes[path.name] = write_table(path, table)
            parts.append(ManifestPart({**part.tables, "chunks": TableRun(run.first, run.count, digest_of(chunks))}))
        content = msgspec.structs.replace(manifest.content, parts=parts, endpoint=endpoint)
        (place / ROOT_NAME).write_bytes(encode_root(content, manifest.urls, file_bytes))
        folder = settle(place, root / content.digest(), durable=False)
        stamp_keys(folder)
        return folder
