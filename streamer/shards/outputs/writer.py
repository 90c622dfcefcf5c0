"""Chooses the writer of a job's shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from streamer.errors import ConfigError
from streamer.formats.base import Field
from streamer.shards.job import Job
from streamer.shards.outputs import columns, tokens
from streamer.shards.outputs.base import SampleTaker, ShardWriter
from streamer.shards.outputs.tars import TarShard
from streamer.shards.values import Sample, value_of

Output = Literal["tar", "parquet", "tokens"]


class KindFinder(SampleTaker):
    """Finds the kinds of fields without writing."""

    def __init__(self, output: str) -> None:
        self._kinds_of = tokens.kinds_of if output == "tokens" else columns.kinds_of
        self.kinds: list[dict[str, str]] = []

    def add(self, sample: Sample, ordinal: int) -> None:
        """Records the kinds of a sample."""
        self.kinds.append(self._kinds_of(columns.plain_values(sample)))


def shard_writer(job: Job, path: Path) -> ShardWriter:
    """Opens the writer of one shard, which overwrites an existing file."""
    if job.output == "tar":
        return TarShard(path)
    if job.output == "tokens":
        return tokens.TokenShard(path, msgspec.convert(job.described["tokens"], tokens.TokenField))
    check_output(job.output)
    from streamer.shards.outputs.parquet import ParquetShard

    return ParquetShard(path, [columns.Column(name, kind) for name, kind in job.described["columns"]])


def described_output(
    output: str, kinds: list[dict[str, str]], known: dict[str, str], vocabulary: int | None
) -> dict[str, Any]:
    """The facts that all writers of shards need, for the description of the job.

    Args:
        output: "parquet" or "tokens".
        kinds: kinds of the first samples, from `KindFinder`.
        known: kinds by field, if the source names them.
        vocabulary: see `tokens.token_field`.

    Raises:
        PackError, ConfigError: the samples cannot be written like this.
    """
    if output == "tokens":
        return {"tokens": msgspec.to_builtins(tokens.token_field(kinds, vocabulary))}
    return {"columns": msgspec.to_builtins(columns.columns_of(kinds, known))}


def field_value(output: str, field: Field) -> tuple[str, object]:
    """Name and value of a field of a source in the form that the writer of this output accepts."""
    return value_of(field) if output == "tar" else columns.field_value(field)


def check_output(output: str, vocabulary: int | None = None) -> None:
    """Refuses an output that cannot be written.

    Raises:
        ConfigError: it does not exist, has no such vocabulary, or pyarrow cannot be imported.
    """
    if vocabulary is not None and (output != "tokens" or not 0 < vocabulary <= tokens.MOST_TOKENS):
        raise ConfigError(
            f"vocabulary={vocabulary!r} with format={output!r}: a number from 1 to {tokens.MOST_TOKENS}, of tokens",
            field="vocabulary",
        )
    if output not in get_args(Output):
        raise ConfigError(
            f"format={output!r} is not one of {', '.join(get_args(Output))}, which shards are written as; the format "
            "of the source is source_format=",
            field="format",
        )
    if output != "parquet":
        return
    try:
        import streamer.shards.outputs.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "Parquet is written with pyarrow, which cannot be imported: pip install 'streamer-data[parquet]' "
            f"({error})",
            field="format",
        ) from error
