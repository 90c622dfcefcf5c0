"""Finds the outputs of a pack by name. A further output is a subclass of `base.Output` and an entry of `OUTPUTS`.

`shards/job.py`, `shards/pack.py`, `shards/prepared.py` and `shards/task.py` use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from streamer.base.extras import require_extra
from streamer.errors import ConfigError
from streamer.formats.base import Field
from streamer.shards.outputs.base import Output, SampleTaker, ShardWriter
from streamer.shards.outputs.columns import OutputColumn, columns_of, field_value, kinds_of, plain_values
from streamer.shards.outputs.tars import TarOutput
from streamer.shards.outputs.tokens import TokenOutput
from streamer.shards.values import Sample


class ParquetOutput(Output):
    """Parquet, whose columns follow from the first samples. Only `open_writer` and `check` import pyarrow."""

    name = "parquet"
    extension = "parquet"
    format = "parquet"

    def open_writer(self, path: Path, described: Mapping[str, Any]) -> ShardWriter:
        """Opens a file with the columns that the job describes; see `Output.open_writer`."""
        self.check()
        from streamer.shards.outputs.parquet import ParquetShard

        return ParquetShard(path, [OutputColumn(name, kind) for name, kind in described["columns"]])

    def field_value(self, field: Field) -> tuple[str, object]:
        """Returns the value that its kind says; see `Output.field_value`."""
        return field_value(field)

    def check(self, vocab_size: int | None = None) -> None:
        """Makes sure that pyarrow can be imported, and refuses a vocabulary; see `Output.check`."""
        super().check(vocab_size)
        with require_extra("writing Parquet", field="output_format"):
            import streamer.shards.outputs.parquet  # noqa: F401

    def find_kinds(self, values: Mapping[str, object]) -> dict[str, str]:
        """Returns the kinds of values that are not None; see `Output.find_kinds`."""
        return kinds_of(values)

    def describe(
        self, kinds: Sequence[Mapping[str, str]], known: Mapping[str, str], vocab_size: int | None
    ) -> dict[str, Any]:
        """Returns {"columns": name and kind of each}; see `Output.describe`."""
        return {"columns": msgspec.to_builtins(columns_of(kinds, known))}


OutputName = Literal["webdataset", "parquet", "tokens"]
OUTPUTS: dict[str, Output] = {"webdataset": TarOutput(), "parquet": ParquetOutput(), "tokens": TokenOutput()}
# A pack has this output where the user names none.
USUAL_OUTPUT: OutputName = "webdataset"
# Outputs by the names that `pack(format=)` had for them before release 0.2.
OLD_OUTPUTS: dict[object, OutputName] = {"tar": "webdataset", "parquet": "parquet", "tokens": "tokens"}


def find_output(name: str, vocab_size: int | None = None) -> Output:
    """Returns the output of that name.

    Raises:
        ConfigError: there is none, it takes no vocabulary of this size, or its library cannot be imported.
    """
    given: object = name
    if not isinstance(given, str) or given not in OUTPUTS:
        raise ConfigError(
            f"output_format={name!r} is not one of {', '.join(OUTPUTS)}, which shards are written as; the format of "
            "the source is format=",
            field="output_format",
        )
    found = OUTPUTS[name]
    found.check(vocab_size)
    return found


class KindFinder(SampleTaker):
    """Finds the kinds of fields of samples, and writes nothing.

    Args:
        output: the output of the shards.

    Attributes:
        kinds: kinds by field, of each sample that was added.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self.kinds: list[dict[str, str]] = []

    def add(self, sample: Sample, ordinal: int) -> None:
        """Appends the kinds of a sample to `kinds`; see `SampleTaker.add`."""
        self.kinds.append(self._output.find_kinds(plain_values(sample)))
