"""Options of annotations, those of their parsers, and the result of these."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from streamer.errors import ConfigError
from streamer.formats.base import FieldSpec
from streamer.formats.names import base_name
from streamer.removed import check_options

if TYPE_CHECKING:
    from streamer.formats.table.writer import Column

# Says what happens to a sample without annotations.
Missing = Literal["error", "none", "drop"]
# Longest file of annotations. It is parsed as a whole, in a process of its own.
MOST_FILE_BYTES = 2_000_000_000
ENDINGS = ("json", "csv", "tsv", "jsonl", "ndjson", "parquet", "pq")
# The key's name in COCO and at Hugging Face.
USUAL_KEY = "file_name"
# These words tell a client about a table that does not name the files: of an error in a recoder only the text arrives.
NO_KEY = "has no column of keys"


@check_options
@dataclass(frozen=True)
class Annotations:
    """A file with labels, boxes or texts for the samples of a dataset, joined by key.

        StreamingDataset("s3://b/images/", annotations=Annotations("s3://b/labels.csv", key="file", fields=["label"]))

    COCO's JSON (instances, keypoints, captions), CSV, TSV, JSON lines, a JSON list of objects, or Parquet. A sample and
    a row belong together if the name in the row is that of the sample: its path below the dataset's url, or the last
    part of it, where the names in the rows are in no folder. Samples of tars have names without extension, and so may
    the rows.

    Args:
        url: url of the file; it is read with the storage options of the dataset.
        key: Column of a table with the names of the samples, by default "file_name".
        fields: the columns that samples get; None: all of a table; of COCO "boxes", "labels", "area", "iscrowd",
            "image_id", "height", "width", or "captions". Others of COCO: "segmentation", "keypoints", "category_ids".
        missing: What becomes of a sample without a row: an "error"; a sample without values ("none"), which has None
            for numbers and texts, and arrays of no items; or no sample ("drop", for datasets of files).
        sample_field: Field of the sample with its name, for records whose "__key__" is only a number. By default
            "__key__".

    Raises:
        ConfigError: an invalid argument.
    """

    url: str
    key: str | None = None
    fields: Sequence[str] | None = None
    missing: Missing = "error"
    sample_field: str | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "url", os.fspath(self.url))
        except TypeError as error:
            raise ConfigError(f"annotations={self.url!r} is not a path", field="annotations") from error
        find_extension(self.url)
        if self.missing not in get_args(Missing):
            allowed = ", ".join(map(repr, get_args(Missing)))
            raise ConfigError(f"missing={self.missing!r} must be one of {allowed}", field="missing")
        if isinstance(self.fields, str) or not all(isinstance(name, str) for name in self.fields or ()):
            raise ConfigError(f"fields={self.fields!r}: give a sequence of names", field="fields")

    @classmethod
    def parse(cls, given: object) -> Annotations | None:
        """Makes annotations of a url, with or without options, or of options by name; raises ConfigError."""
        if given is None or isinstance(given, cls):
            return given
        try:
            return cls(**given) if isinstance(given, Mapping) else cls(given)  # type: ignore[arg-type]
        except TypeError as error:
            raise ConfigError(f"annotations={given!r}: {error}", field="annotations") from error


class TableOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a parser: see `Annotations`."""

    url: str
    key: str | None = None
    fields: tuple[str, ...] | None = None


class Parsed(msgspec.Struct, frozen=True):
    """The rows of a file: a key for each, fields and their columns, and the names of the labels."""

    keys: Sequence[str]
    fields: Sequence[FieldSpec]
    columns: Sequence[Column]
    classes: tuple[str, ...] = ()


def find_extension(url: str) -> str:
    """Returns the extension of a url in small letters, one of `ENDINGS`; raises ConfigError for any other."""
    ending = base_name(url).lower().rpartition(".")[2]
    if ending not in ENDINGS:
        raise ConfigError(
            f"annotations={url!r}: the name says the kind; .{', .'.join(ENDINGS)} are read", field="annotations"
        )
    return ending


def choose_fields(options: TableOptions, known: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Returns the wanted fields, in their order; raises ConfigError for one that the file does not have."""
    if options.fields is None:
        return list(usual)
    for name in options.fields:
        if name not in known:
            raise ConfigError(
                f"annotations={options.url!r} has no field {name!r}; it has {', '.join(known)}", field="fields"
            )
    return list(options.fields)
