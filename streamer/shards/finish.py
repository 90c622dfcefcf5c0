"""Compares shards with their receipts, and writes the manifest of a pack from them.

Used at the end of a pack (`settle.py`), and to verify one later (`verify.py`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from streamer.base.concurrency import map_concurrently
from streamer.base.temporary import open_temporary_folder
from streamer.errors import IntegrityError, ObjectChangedError
from streamer.formats.base import Facts
from streamer.formats.checksum import crc32
from streamer.formats.detect import chooser
from streamer.formats.registry import find_format
from streamer.indexing.build import build
from streamer.indexing.listed_rows import list_objects
from streamer.indexing.publish import publish
from streamer.indexing.rows import Contained
from streamer.indexing.tasks import FetchedLists
from streamer.manifest.chunking import choose_chunk_bytes, cut_object
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.shards.destination import Destination, files_of
from streamer.shards.job import Job
from streamer.shards.receipts import Receipt
from streamer.store.addresses.urls import shown

_READS_AT_ONCE = 16


async def check_samples(destination: Destination, receipts: Sequence[Receipt], records: Sequence[ObjectRecord]) -> int:
    """Reads one piece of each shard that has samples, chosen at random, and compares it with its checksum.

    Args:
        destination: where the shards are.
        receipts: the receipts of all shards.
        records: the object of each shard, in the same order.

    Returns:
        Number of samples in the pieces that were read.

    Raises:
        IntegrityError: a piece differs.
        StoreError: a piece cannot be read.
    """

    async def check(number: int) -> int:
        receipt = receipts[number]
        record = records[number]
        if not receipt.samples:
            return 0
        piece = random.randrange(receipt.pieces)
        edges = receipt.edges
        start, stop = int(edges[piece]), int(edges[piece + 1])
        content = await destination.fetcher.read(Extent(record, start, stop))
        compare(receipt, record, piece, content)
        return receipt.samples_of(range(piece, piece + 1))

    return sum(await map_concurrently(check, range(len(receipts)), _READS_AT_ONCE))


def compare(receipt: Receipt, record: ObjectRecord, piece: int, content: bytes | memoryview) -> None:
    """Compares the bytes of one piece with its checksum in the receipt.

    Args:
        receipt: receipt of the shard.
        record: object of the shard, for the error.
        piece: number of the piece.
        content: its bytes.

    Raises:
        IntegrityError: they differ.
    """
    expected = receipt.sum_of(piece)
    actual = crc32(content)
    if expected != actual:
        start = int(receipt.edges[piece])
        what = "sample"
        if receipt.rows:
            what = "piece" if receipt.index_size else "row group"
        raise IntegrityError(
            f"{shown(record.url)}: {what} {piece} (bytes {start} to {start + len(content)}) has CRC-32 {actual:08x}, "
            f"{expected:08x} was written; delete the shard and pack again",
            url=shown(record.url),
            piece=piece,
            offset=start,
        )


def compare_index(receipt: Receipt, record: ObjectRecord, content: bytes) -> None:
    """Compares the bytes of an index file with its checksum in the receipt.

    Raises:
        IntegrityError: they differ.
    """
    if (actual := crc32(content)) != receipt.index_sum:
        raise IntegrityError(
            f"{shown(record.url)} has CRC-32 {actual:08x}, {receipt.index_sum:08x} was written; delete it and pack "
            "again",
            url=shown(record.url),
        )


async def manifest_of(destination: Destination, job: Job, receipts: Mapping[int, Receipt], folder: Path) -> Manifest:
    """Makes the manifest of the shards in a local folder; it equals the one that an index of the destination makes.

    Tars need only a listing and their receipts. Of Parquet the footers are read, of tokens the index files.

    Args:
        destination: where the shards are.
        job: the pack.
        receipts: receipts of all shards, by number.
        folder: the manifest is written below it.

    Raises:
        IntegrityError: there are further files of this format, or footers or index files tell another number of
            samples.
        ObjectChangedError: a shard differs from its receipt, or is gone.
        ManifestError: there are no shards, a footer or index file is damaged, or the folder cannot be written.
        StoreError: the destination cannot be read.
        ConfigError: a library of the format is not installed.
    """
    chosen = chooser(job.output.format)
    listed = await list_objects((destination.url,), FetchedLists(destination.fetcher), chosen, 1)
    listing = listed.listing
    by_name = {job.shard_name(number): receipt for number, receipt in receipts.items()}
    found = {record.url[len(destination.url) :]: record for record in map(listing.record, range(len(listing)))}
    others = {url[len(destination.url) :]: record for url, record in listed.others.items()}
    if odd := found.keys() - by_name.keys():
        raise IntegrityError(
            f"{shown(destination.url)}{min(odd)} is not a shard of this pack (one of {len(odd)} such files): another "
            "program writes there, or an earlier run made more shards; delete it and pack again",
            url=shown(destination.url),
        )
    for receipt in receipts.values():
        _require(destination, job, receipt, found | others)
    if not job.output.is_indexed_by_receipts:
        # Footers or index files are read: a request or two for each shard.
        fetcher = destination.fetcher
        lister = FetchedLists(fetcher)
        manifest = await build((destination.url,), folder, lister=lister, reader=fetcher, choose_format=chosen)
        if manifest.samples != (written := sum(receipt.samples for receipt in receipts.values())):
            raise IntegrityError(
                f"the files below {shown(destination.url)} have {manifest.samples} samples, {written} were written; "
                "pack to another destination, and report this",
                url=shown(destination.url),
            )
        return manifest
    chunk_bytes = choose_chunk_bytes("auto", listing.sizes, False)
    cuts = [
        cut_object(edges[:-1], edges[1:], record.size, chunk_bytes)
        for record, edges in ((record, by_name[name].edges) for name, record in found.items())
    ]
    rows = Contained(listing, find_format(job.output.format), Facts(), chunk_bytes).rows(cuts)
    return Manifest.open(publish(rows, folder))


async def put_manifest(destination: Destination, job: Job, receipts: Mapping[int, Receipt]) -> Manifest:
    """Makes the manifest of the shards, writes it to the destination, and compares shards and receipts once more.

    Raises:
        IntegrityError: see `manifest_of`.
        ObjectChangedError: a shard differs from its receipt, before or after the manifest is written.
        ManifestError: see `manifest_of`.
        OSError: no temporary folder can be made.
        StoreError: the destination cannot be read or written.
    """
    with open_temporary_folder("pack") as folder:
        manifest = await manifest_of(destination, job, receipts, folder)
        await destination.put_manifest(manifest)
    # Another pack of the same job may have written a shard, and its manifest, at the same time.
    records = await destination.records()
    for receipt in receipts.values():
        _require(destination, job, receipt, records)
    return manifest


def _require(destination: Destination, job: Job, receipt: Receipt, records: Mapping[str, ObjectRecord]) -> None:
    """Raises ObjectChangedError if a file of a shard is gone or is another one than the receipt says."""
    for name, (size, version) in files_of(job, receipt).items():
        record = records.get(name)
        if record is None or (record.size, record.version) != (size, version):
            now = "is gone" if record is None else f"has {record.size} bytes and {record.version}"
            raise ObjectChangedError(
                f"{shown(destination.url)}{name} {now}; {size} bytes and {version} were written. Pack again: only such "
                "shards are written again",
                url=f"{shown(destination.url)}{name}",
            )
