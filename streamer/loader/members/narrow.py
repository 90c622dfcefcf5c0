"""Finds the manifest of some fields of a dataset, with which no bytes of the others are read."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

import msgspec
import numpy as np

from streamer.client.engine_client import EngineClient
from streamer.errors import AccessDeniedError, ManifestError, printable
from streamer.formats.registry import restore_format
from streamer.manifest.columns import BinaryColumn, encode_text
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest

logger = logging.getLogger(__name__)


def find_field(manifest: Manifest, column: str) -> str:
    """Returns the field that has a column, or of which it is a part ("meta.width"); "" if there is none."""
    names = {field.name for field in manifest.facts.fields}
    while column and column not in names:
        column = column.rpartition(".")[0]
    return column


def list_narrow_fields(manifest: Manifest) -> list[str]:
    """Returns the names of the fields that are read without the bytes of the others."""
    if not manifest.facts.fields:
        return []
    found = restore_format(manifest)
    names = [field.name for field in manifest.facts.fields]
    return [name for name in names if found.narrow(manifest.facts, [name]) is not None]


def narrow_manifest(
    manifest: Manifest, fields: Collection[str], client: EngineClient, request: GetManifest
) -> Manifest:
    """Finds or builds the manifest of these fields, with the same samples in the same order.

    Args:
        manifest: Manifest of the whole dataset.
        fields: Names of its fields; the whole manifest is returned for none.
        client: Connection to the engine, which finds or builds it.
        request: Request with which the whole manifest was asked for.

    Returns:
        The manifest of the fields, or that of the dataset where the format cannot read them alone, where these fields
        are all, or where they alone are no dataset or one of other objects than the manifest's.
    """
    if not fields or len(manifest.facts.fields) <= len(fields):
        return manifest
    narrow = restore_format(manifest).narrow(manifest.facts, fields)
    if narrow is None:
        return manifest
    names = printable(", ".join(fields))
    options = msgspec.json.encode(narrow.options)
    asked = msgspec.structs.replace(
        request, format=narrow.name, format_options=options, manifest="", build=True, chunk_bytes=0
    )
    try:
        found = Manifest.open(client.manifest(asked))
    except (ManifestError, AccessDeniedError) as error:
        # An array of which no chunk was written is no dataset, and credentials may read objects and not list them.
        reason = error.message
        logger.warning("%s: read with all other fields, because alone they cannot be: %s", names, reason)
        return manifest
    if not _is_part(found, manifest):
        logger.warning("%s: read with all other fields, because the objects have changed", names)
        return manifest
    return found


def _is_part(narrow: Manifest, whole: Manifest) -> bool:
    """Whether all objects of a manifest are those of the other one: they may have changed since that was made."""
    if narrow.samples != whole.samples:
        return False
    found, known = (np.fromiter(_object_hashes(each), np.int64, each.objects) for each in (narrow, whole))
    return bool(np.isin(found, known).all())


def _object_hashes(manifest: Manifest) -> Iterator[int]:
    base = encode_text(manifest.content.base)
    for tables in manifest.tables:
        keys = tables["objects"]["key"]
        versions = tables["objects"]["version"]
        assert isinstance(keys, BinaryColumn)
        assert isinstance(versions, BinaryColumn)
        for row in range(len(keys)):
            yield hash((base + keys[row], versions[row]))
