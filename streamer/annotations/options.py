"""Defines the options of annotations: `Annotations`, which the user gives, and what their parsers get and return.

Used by the datasets, packs and commands that take `annotations=`, by the engine and the recoders, which make the tables
(`engine/manifests/`, `recode/`), and by the parsers (`parse.py`, `coco.py`).
"""

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

# The word says what happens to a sample without annotations; see `Annotations`.
Missing = Literal["error", "none", "drop"]
# Bytes of the longest file of annotations. It is parsed as a whole, by the engine in a process of its own.
MOST_FILE_BYTES = 2_000_000_000
ENDINGS = ("json", "csv", "tsv", "jsonl", "ndjson", "parquet", "pq")
# The key's name in COCO and at Hugging Face.
USUAL_KEY = "file_name"
# These words in an error's text tell a client that a table does not name the samples: only the text arrives there.
NO_KEY = "has no column of keys"


@check_options
@dataclass(frozen=True)
class Annotations:
    """Names a file with labels, boxes or texts for the samples of a dataset, which are joined by key.

        StreamingDataset("s3://b/images/", annotations=Annotations("s3://b/labels.csv", key="file", fields=["label"]))

    The file is COCO's JSON (instances, keypoints, captions), CSV, TSV, JSON lines, a JSON list of objects, or Parquet.
    A sample and a row belong together if the name in the row is that of the sample: its path below the dataset's url,
    or the last part of it, where the names in the rows are in no folder. Samples of tars have names without extension,
    and so may the rows.

    Args:
        url: url of the file; it is read with the storage options of the dataset.
        key: Column of a table with the names of the samples, by default "file_name", which is the only one for COCO.
        fields: the columns that samples get. By default all of a table but the key. Of COCO "boxes", "labels", "area"
            and "iscrowd", or "captions"; with either "image_id", and "height" and "width" if the images have them.
            Others of COCO: "segmentation", "keypoints", "category_ids".
        missing: What becomes of a sample without a row. With "error" it is an error. With "none" the sample has None
            in every field, but an array of no items where arrays have an open length. With "drop" it is left out (for
            datasets of files).
        sample_field: Field of the sample with its name, for records whose "__key__" is only a number. By default
            "__key__".

    Raises:
        ConfigError: `url`, `fields` or `missing` is not valid.
    """

    url: str
    key: str | None = None
    fields: Sequence[str] | None = None
    missing: Missing = "error"
    sample_field: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.url, str | os.PathLike):
            raise ConfigError(f"annotations={self.url!r} is not a path", field="annotations")
        object.__setattr__(self, "url", os.fspath(self.url))
        find_extension(self.url)
        if self.missing not in get_args(Missing):
            allowed = ", ".join(map(repr, get_args(Missing)))
            raise ConfigError(f"missing={self.missing!r} must be one of {allowed}", field="missing")
        fields: object = () if self.fields is None else self.fields
        # A set is refused, because its order differs between processes.
        names = fields if isinstance(fields, Sequence) and not isinstance(fields, str) else [None]
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(f"fields={self.fields!r}: give a sequence of names", field="fields")

    @classmethod
    def parse(cls, given: object) -> Annotations | None:
        """Makes annotations of a url or of a mapping of options; None and `Annotations` are returned as they are.

        Raises:
            ConfigError: an invalid option or url.
        """
        if given is None or isinstance(given, cls):
            return given
        try:
            return cls(**given) if isinstance(given, Mapping) else cls(given)  # type: ignore[arg-type]
        except TypeError as error:
            raise ConfigError(f"annotations={given!r}: {error}", field="annotations") from error


class TableOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds the options of a parser, as the engine sends them to a recoder; the fields are those of `Annotations`."""

    url: str
    key: str | None = None
    fields: tuple[str, ...] | None = None


class Parsed(msgspec.Struct, frozen=True):
    """Holds the rows of a file as a parser returns them.

    Attributes:
        keys: key of each row.
        fields: name and kind of each field.
        columns: values of each field, for all rows.
        classes: names of the labels, by number; empty if the file has none.
    """

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
    """Returns the fields that the user names, in this order, or those that are `usual` for the file.

    Args:
        options: options of the parser.
        known: all fields of the file.
        usual: fields to return if the user names none.

    Raises:
        ConfigError: the file does not have a field that the user names.
    """
    if options.fields is None:
        return list(usual)
    for name in options.fields:
        if name not in known:
            raise ConfigError(
                f"annotations={options.url!r} has no field {name!r}; it has {', '.join(known)}", field="fields"
            )
    return list(options.fields)
