"""Shared by commands that look at a dataset: the connection to the engine, and the manifest."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from streamer.cli.options import with_sample_choice
from streamer.cli.terminal import Terminal
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.loader.rank.dataset_options import absolute
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest

# The limit is for indexes that a training job builds in passing; here the index is what the user asked for.
NO_LIMIT_SECONDS = 1e9


def client_settings(arguments: argparse.Namespace) -> ClientSettings:
    """Settings for reaching the engine: environment, --cache-dir, --storage-options."""
    found = replace(ClientSettings.from_environment(), storage_options=arguments.storage_options)
    if arguments.cache_dir is None:
        return found
    return replace(found, cache_dir=Path(os.path.abspath(arguments.cache_dir)))


def open_manifest(
    client: EngineClient, arguments: argparse.Namespace, terminal: Terminal, chunk_bytes: int | None = None
) -> Manifest:
    """Finds or builds the manifest of the urls (`options.add_dataset`), with progress.

    Raises:
        ManifestError, StoreError: it cannot be found or built.
    """
    notes: list[str] = []
    with terminal.progress("indexing", "bytes") as bar:
        folder = client.manifest(
            request_of(arguments, chunk_bytes),
            lambda step: bar.update(step.done, step.total or None, step.text),
            notes.append,
        )
    for note in notes:
        terminal.note(note)
    return Manifest.open(folder)


def request_of(arguments: argparse.Namespace, chunk_bytes: int | None = None) -> GetManifest:
    """The request for the manifest of the urls."""
    request = GetManifest(
        0,
        [absolute(url) for url in arguments.urls],
        arguments.format,
        manifest=absolute(arguments.manifest) if arguments.manifest else "",
        chunk_bytes=chunk_bytes or 0,
        limit_seconds=NO_LIMIT_SECONDS,
    )
    return with_sample_choice(request, arguments)
