"""The samples of a joined dataset, one after the other, as `streamer pack --join` writes them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from streamer import StreamingDataset
from streamer.batches.samples.join_cost import describe_join
from streamer.cli.dataset import JoinOptions, choose_format
from streamer.decode.rule import StoredFields
from streamer.errors import ConfigError, PackError
from streamer.formats.base import Field
from streamer.formats.folder import Folder
from streamer.shards.outputs.columns import field_value, to_json
from streamer.shards.outputs.registry import OUTPUTS

# Such a value is written as a member of its own, under its own name or with an extension.
_MEMBERS = (bytes, memoryview, str, np.ndarray)
_AS_STORED: Mapping[str, Any] = {"shuffle": False, "decode": StoredFields(), "rank": 0, "world_size": 1}


def open_join(arguments: argparse.Namespace) -> StreamingDataset:
    """The dataset with the fields of all right sides, in its own order.

    Raises:
        ConfigError: an option is invalid, or does not go with --join.
    """
    if arguments.annotations is not None or arguments.order not in ("manifest", "name") or arguments.on != "processes":
        raise ConfigError(
            "--annotations, --order shuffle and --on do not go with --join: one process writes the samples in the "
            "order of SRC",
            field="join",
        )
    format_options = json.loads(arguments.format_options)
    joined = StreamingDataset(
        arguments.urls,
        format=Folder(arguments.extensions)
        if arguments.extensions
        else choose_format(arguments.source_format, format_options),
        manifest=arguments.manifest,
        storage_options=arguments.storage_options,
        **_AS_STORED,
    )
    for given in arguments.join:
        join = JoinOptions.parse(given)
        joined = join.join(joined, arguments.storage_options, {"manifest": join.manifest, **_AS_STORED})
    return joined


def costs_of(dataset: StreamingDataset) -> list[str]:
    """What is fetched of each right side, in words."""
    left = dataset._member.open()
    with dataset._member.connections.for_requests() as connection:
        return [describe_join(join, left, connection.welcome.limit_bytes) for join in left.joins]


def samples_of(dataset: StreamingDataset, output: str, fields: Mapping[str, str] | None) -> Iterator[dict[str, object]]:
    """Yields the samples in their order, in the form that the writer of this output accepts.

    Args:
        dataset: result of `open_join`.
        output: name of the output, see `shards.outputs.registry`.
        fields: the names of those that are written, with their new names, None for all.

    Raises:
        PackError: a sample lacks one of them.
    """
    chosen = OUTPUTS[output]
    for sample in dataset:
        assert isinstance(sample, dict)
        wanted = {name: name for name in sample} if fields is None else {"__key__": "__key__", **fields}
        if lacking := wanted.keys() - sample.keys():
            raise PackError(
                f"sample {sample['__key__']!r} has no field {min(lacking)!r}; it has {', '.join(sample)}",
                sample=sample["__key__"],
            )
        found = dict(_name_and_value(chosen.field_value, new, sample[name]) for name, new in wanted.items())
        if chosen.has_files and "json" in found:
            # Numbers, lists and None would be together in one more `json`.
            found = {_member(name, value): value for name, value in found.items()}
        yield found


def _name_and_value(to_value: Callable[[Field], tuple[str, object]], name: str, value: object) -> tuple[str, object]:
    """Name and value of a field, or of the list of those of several rows."""
    if isinstance(value, list):
        return name, [_list_item(name, each) for each in value]
    if not isinstance(value, Field):
        return name, value
    # The extension does not tell the kind under another name.
    ending = value.name.rpartition(".")[2]
    if not value.kind and name != value.name and name.rpartition(".")[2] != ending:
        name = f"{name}.{ending}"
    return to_value(Field(name, value.content, value.kind))


def _list_item(name: str, value: object) -> object:
    """A field of one of several rows, in their list: it is JSON, in every output."""
    return to_json(*_name_and_value(field_value, name, value)) if isinstance(value, Field) else value


def _member(name: str, value: object) -> str:
    plain = name.startswith("__") or isinstance(value, _MEMBERS) or name in ("label", "cls") or name.endswith("json")
    return name if plain else f"{name}.json"
