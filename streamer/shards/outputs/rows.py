"""Shards as Parquet, before pyarrow is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from streamer.errors import ConfigError
from streamer.formats.base import Field
from streamer.shards.outputs import columns
from streamer.shards.outputs.base import Output, ShardWriter


class ParquetOutput(Output):
    """Parquet, whose columns follow from the first samples."""

    name = "parquet"
    extension = "parquet"
    format = "parquet"

    def open_writer(self, path: Path, described: Mapping[str, Any]) -> ShardWriter:
        """Opens a file of the columns of the job; see `Output.open_writer`."""
        self.check()
        from streamer.shards.outputs.parquet import ParquetShard

        return ParquetShard(path, [columns.OutputColumn(name, kind) for name, kind in described["columns"]])

    def field_value(self, field: Field) -> tuple[str, object]:
        """Returns the value that its kind says; see `Output.field_value`."""
        return columns.field_value(field)

    def check(self, vocabulary: int | None = None) -> None:
        """Makes sure that pyarrow can be imported; see `Output.check`."""
        super().check(vocabulary)
        try:
            import streamer.shards.outputs.parquet  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "Parquet is written with pyarrow, which cannot be imported: pip install 'streamer-data[parquet]' "
                f"({error})",
                field="format",
            ) from error

    def find_kinds(self, values: Mapping[str, object]) -> dict[str, str]:
        """Returns the kinds of values that are not None; see `Output.find_kinds`."""
        return columns.kinds_of(values)

    def describe(
        self, kinds: Sequence[Mapping[str, str]], known: Mapping[str, str], vocabulary: int | None
    ) -> dict[str, Any]:
        """Returns the columns; see `Output.describe`."""
        return {"columns": msgspec.to_builtins(columns.columns_of(kinds, known))}
