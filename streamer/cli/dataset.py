"""Opens the dataset that a command names: the connection to the engine, the manifest, the chosen samples.

Used by the commands with urls of a dataset, here and in `tools/`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from streamer.base.extras import require_extra
from streamer.cli.options import add_choice_to_request
from streamer.cli.terminal import Terminal
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.config import counted, format_bytes
from streamer.errors import ConfigError
from streamer.formats.base import Format
from streamer.formats.registry import find_format
from streamer.loader.options.dataset_options import absolute
from streamer.manifest.table import Manifest
from streamer.removed import replace_arguments
from streamer.wire.messages import GetManifest

if TYPE_CHECKING:
    from streamer.batches.samples.opened import OpenedDataset
    from streamer.loader.dataset import StreamingDataset

# Time that a command gives the engine to build a manifest: any. The default limit is meant for training jobs.
NO_LIMIT_SECONDS = 1e9


class JoinOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One --join: the dataset to join (the right side), and the arguments of `StreamingDataset.join`.

    Attributes:
        url: url of the right side, or its urls.
        on: field that both sides have, or its names on the left and on the right side.
        columns: fields to take from the right side, or a mapping of them to new names; None takes all.
        missing: what happens to a sample without a partner.
        validate: how many samples may have the same partner, and how many partners a sample may have.
        format: format of the right side, with `format_options`.
        format_options: options of the format by name.
        manifest: url or folder of the right side's manifest; None to find or build it.
        storage_options: options of the right side's store; None to use those of the command.
    """

    url: str | list[str]
    on: str | tuple[str, str]
    columns: list[str] | dict[str, str] | None = None
    missing: Literal["error", "drop", "none"] = "error"
    validate: Literal["many_to_one", "many_to_many"] = "many_to_one"
    format: str = "auto"
    format_options: dict[str, Any] = {}
    manifest: str | None = None
    storage_options: dict[str, Any] | None = None

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> Self:
        """Returns the options of one --join, given as values by name; replaces an old value, with a warning.

        Raises:
            ConfigError: a name or a value is wrong, or `url` or `on` is missing.
        """
        current = replace_arguments("StreamingDataset.join", given)
        try:
            return msgspec.convert(current, cls)
        except ValueError as error:
            # The text is not quoted as a whole: it may have secrets.
            raise ConfigError(f"--join {given.get('url', '')}: {error} (docs/joins.md)", field="join") from error

    def join(
        self, left: StreamingDataset, storage_options: Mapping[str, Any] | None, arguments: Mapping[str, Any]
    ) -> StreamingDataset:
        """Opens the right side, and returns the left side joined to it.

        Args:
            left: the dataset whose samples get the fields.
            storage_options: options of the right side's store if it has none of its own.
            arguments: further arguments of `StreamingDataset` for the right side.

        Raises:
            ConfigError: an option is invalid.
        """
        from streamer.loader.dataset import StreamingDataset

        right = StreamingDataset(
            [self.url] if isinstance(self.url, str) else self.url,
            format=choose_format(self.format, self.format_options),
            storage_options=storage_options if self.storage_options is None else self.storage_options,
            **arguments,
        )
        return left.join(right, on=self.on, columns=self.columns, missing=self.missing, validate=self.validate)


def client_settings(arguments: argparse.Namespace) -> ClientSettings:
    """Returns the settings of a client, from the environment, --cache-dir and --storage-options.

    Raises:
        ConfigError: a variable of the environment is invalid.
    """
    found = replace(ClientSettings.from_environment(), storage_options=arguments.storage_options)
    if arguments.cache_dir is None:
        return found
    return replace(found, cache_dir=Path(os.path.abspath(arguments.cache_dir)))


def open_manifest(
    client: EngineClient, arguments: argparse.Namespace, terminal: Terminal, chunk_bytes: int | None = None
) -> Manifest:
    """Has the engine find or build the manifest of the urls, shows progress and notes, and opens the manifest.

    Args:
        client: client of the engine.
        arguments: those of `options.add_dataset`.
        terminal: where progress and notes go.
        chunk_bytes: length of chunks in bytes; None for the default.

    Raises:
        ConfigError: an option is invalid.
        StreamerError: no engine can be asked, or the manifest cannot be found, built or opened.
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


def describe_dataset(manifest: Manifest, terminal: Terminal) -> None:
    """Writes two lines: samples, objects, bytes and chunks of a manifest; its format and digest."""
    largest_bytes = int(manifest.chunk_local_bytes.max(initial=0))
    terminal.line(
        f"{counted(manifest.samples, 'samples')} in {counted(manifest.objects, 'objects')}, "
        f"{format_bytes(manifest.total_bytes)}, "
        f"{counted(manifest.chunks, 'chunks')} of up to {format_bytes(largest_bytes)}"
    )
    terminal.line(f"format {manifest.format}, digest {manifest.digest}")


def request_of(arguments: argparse.Namespace, chunk_bytes: int | None = None) -> GetManifest:
    """Returns the request for the manifest of the urls; the arguments are those of `open_manifest`.

    Raises:
        ConfigError: the scheme of a url is followed by one slash.
    """
    request = GetManifest(
        0,
        [absolute(url) for url in arguments.urls],
        arguments.format,
        manifest=absolute(arguments.manifest) if arguments.manifest else "",
        chunk_bytes=chunk_bytes or 0,
        limit_seconds=NO_LIMIT_SECONDS,
    )
    return add_choice_to_request(request, arguments)


def open_samples(arguments: argparse.Namespace, manifest: Manifest) -> OpenedDataset:
    """Opens the samples that --where chooses, joined to the datasets of --join.

    Args:
        arguments: those of `dataset_of`, `options.add_manifest` and `options.add_join`, and `where`, None for all.
        manifest: manifest of the dataset; all its samples are opened if there is neither option.

    Raises:
        ConfigError: an option is invalid, or torch is missing.
        StreamerError: no engine can be asked, fields or a joined dataset cannot be read, or the keys do not fit.
    """
    from streamer.batches.samples.opened import OpenedDataset

    if not arguments.join and arguments.where is None:
        return OpenedDataset(manifest, None)
    dataset = dataset_of(arguments, arguments.manifest)
    from streamer.loader.options.arguments import Index

    for given in arguments.join:
        join = JoinOptions.parse(given)
        dataset = join.join(
            dataset,
            arguments.storage_options,
            {
                "manifest": Index(join.manifest, max_seconds=NO_LIMIT_SECONDS),
                "cache_dir": arguments.cache_dir,
            },
        )
    if arguments.where is not None:
        dataset = dataset.select(where=arguments.where)
    with contextlib.closing(dataset):
        return dataset._member.open()


def dataset_of(arguments: argparse.Namespace, manifest: str | None) -> StreamingDataset:
    """Makes the dataset that a job would have with these options; the caller closes it.

    Args:
        arguments: those of `options.add_urls`, `add_sample_choice`, `add_storage_options` and `add_cache_dir`.
        manifest: folder or url of its manifest, or None to find or build it.

    Raises:
        ConfigError: an option is invalid, or torch is missing.
    """
    with require_extra("reading samples", field="torch"):
        from streamer.loader.dataset import StreamingDataset
        from streamer.loader.options.arguments import Index
    from streamer.formats.folder import Folder

    return StreamingDataset(
        arguments.urls,
        format=Folder(arguments.extensions)
        if arguments.extensions
        else choose_format(arguments.format, arguments.format_options),
        storage_options=arguments.storage_options,
        manifest=Index(manifest, max_seconds=NO_LIMIT_SECONDS, damaged=arguments.damaged),
        cache_dir=arguments.cache_dir,
        shuffle=not arguments.no_shuffle,
    )


def choose_format(name: str, options: Mapping[str, Any]) -> str | Format:
    """Returns the value for format= of a dataset: the format with its options, or without options the name alone.

    Args:
        name: name of the format, or "auto".
        options: options of the format by name.

    Raises:
        ConfigError: there are options, and no such format, or it does not have them.
    """
    return find_format(name, options) if options else name
