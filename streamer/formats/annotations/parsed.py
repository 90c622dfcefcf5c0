"""What parsers of annotation files are asked for, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from streamer.errors import ConfigError
from streamer.formats.base import FieldSpec
from streamer.formats.names import base_name

if TYPE_CHECKING:
    from streamer.formats.table.writer import Column

# Of a file of annotations. It is parsed as a whole, in a process of its own.
MOST_FILE_BYTES = 2_000_000_000
ENDINGS = ("json", "csv", "tsv", "jsonl", "ndjson", "parquet", "pq")
# What COCO and Hugging Face call it.
USUAL_KEY = "file_name"


class TableOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wanted of a file.

    Attributes:
        url: of the file.
        key: the column with the keys; None: `USUAL_KEY`.
        fields: the columns that samples get; None: all of a table, the usual ones of COCO.
    """

    url: str
    key: str | None = None
    fields: tuple[str, ...] | None = None


class Parsed(msgspec.Struct, frozen=True):
    """The rows of a file.

    Attributes:
        keys: one per row.
        fields: of every row.
        columns: their values.
        classes: names of the labels.
    """

    keys: Sequence[str]
    fields: Sequence[FieldSpec]
    columns: Sequence[Column]
    classes: tuple[str, ...] = ()


def ending_of(url: str) -> str:
    """What kind of file it is.

    Raises:
        ConfigError: of a kind that is not read.
    """
    ending = base_name(url).lower().rpartition(".")[2]
    if ending not in ENDINGS:
        raise ConfigError(
            f"annotations={url!r}: the name says the kind; .{', .'.join(ENDINGS)} are read", field="annotations"
        )
    return ending


def chosen_fields(options: TableOptions, known: Sequence[str], usual: Sequence[str]) -> list[str]:
    """The wanted fields, in their order.

    Raises:
        ConfigError: one that the file does not have.
    """
    if options.fields is None:
        return list(usual)
    for name in options.fields:
        if name not in known:
            raise ConfigError(
                f"annotations={options.url!r} has no field {name!r}; it has {', '.join(known)}", field="fields"
            )
    return list(options.fields)
