"""Finds the table of a dataset's annotations, and the samples that it has rows of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamer.annotations.join import JoinRules, find_matches
from streamer.annotations.options import Annotations
from streamer.annotations.table import ANNOTATIONS
from streamer.client.engine_client import EngineClient
from streamer.errors import ConfigError
from streamer.loader.members.selections import Choice
from streamer.loader.options.dataset_options import absolute
from streamer.manifest.selection import Where
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, IndexProgress

if TYPE_CHECKING:
    from streamer.batches.samples.joins import OpenedJoin
    from streamer.loader.members.joins.making import Join
    from streamer.manifest.selection import Selection


def find_table(
    client: EngineClient, annotations: Annotations, progress: Callable[[IndexProgress], None] | None = None
) -> Path:
    """The folder of the table, which the engine finds or makes.

    Raises:
        ManifestError, StoreError, ConfigError: as the engine reports.
    """
    options = {"key": annotations.key, "fields": None if annotations.fields is None else list(annotations.fields)}
    request = GetManifest(0, [absolute(annotations.url)], ANNOTATIONS, format_options=msgspec.json.encode(options))
    return client.manifest(request, progress)


def both_digests(manifest: str, table: str | None) -> str:
    """Returns one text for both; that of the manifest alone where nothing is joined."""
    return manifest if table is None else f"{manifest}+{table}"


def kept(manifest: Manifest, rules: JoinRules | None) -> tuple[Choice, ...]:
    """The selection of the samples that have annotations, if the others are left out; compares the keys in any case.

    Raises:
        ManifestError: as `matched`.
        ConfigError: samples cannot be dropped where their keys are not known.
    """
    if rules is None:
        return ()
    if (found := find_matches(manifest, rules)) is not None:
        return ((found, Where()),) if rules.missing == "drop" else ()
    if rules.missing == "drop":
        raise ConfigError(
            "missing='drop' is for datasets of files: the keys of other samples are known when they are read; "
            "missing='empty' and a transform can leave them out of the loss",
            field="missing",
        )
    return ()


def add_joined(
    choices: list[Choice],
    joins: Sequence[tuple[int, Join, OpenedJoin]],
    choose: Callable[[Sequence[Choice]], Selection | None],
) -> list[Choice]:
    """Adds the selections of the samples that have rows, where a join drops the others; returns all choices.

    Args:
        choices: what is selected besides.
        joins: number of the choices before each join, the join, and the join as it was opened.
        choose: makes one selection of several choices.
    """
    # From the last one on, so that the places of the others stay.
    for at, join, opened in reversed(joins):
        if join.missing != "drop" or not opened.table.head.matched.missing:
            continue
        before = choose(choices[:at])
        found = opened.table.found if before is None else opened.table.found[before.ordinals]
        choices.insert(at, (found, Where()))
    return choices
