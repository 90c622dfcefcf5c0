"""The outputs of `streamer pack` by name. Another one is a subclass of `base.Output` and a row of `OUTPUTS`."""

from __future__ import annotations

from typing import Literal

from streamer.errors import ConfigError
from streamer.shards.outputs.base import Output, SampleTaker
from streamer.shards.outputs.columns import plain_values
from streamer.shards.outputs.rows import ParquetOutput
from streamer.shards.outputs.tars import TarOutput
from streamer.shards.outputs.tokens import TokenOutput
from streamer.shards.values import Sample

OutputName = Literal["tar", "parquet", "tokens"]
OUTPUTS: dict[str, Output] = {"tar": TarOutput(), "parquet": ParquetOutput(), "tokens": TokenOutput()}


def find_output(name: str, vocabulary: int | None = None) -> Output:
    """Returns the output of that name.

    Raises:
        ConfigError: There is none, it takes no such vocabulary, or a library that it needs cannot be imported.
    """
    if name not in OUTPUTS:
        raise ConfigError(
            f"format={name!r} is not one of {', '.join(OUTPUTS)}, which shards are written as; the format of the "
            "source is source_format=",
            field="format",
        )
    found = OUTPUTS[name]
    found.check(vocabulary)
    return found


class KindFinder(SampleTaker):
    """Finds the kinds of fields without writing."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.kinds: list[dict[str, str]] = []

    def add(self, sample: Sample, ordinal: int) -> None:
        """Records the kinds of a sample."""
        self.kinds.append(self._output.find_kinds(plain_values(sample)))
