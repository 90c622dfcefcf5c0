"""Writers of shards, and which one a job has."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol, Self, get_args

from streamer.errors import ConfigError
from streamer.formats.base import Field
from streamer.shards.job import Job
from streamer.shards.outputs import columns
from streamer.shards.outputs.tars import TarShard
from streamer.shards.receipts import Written
from streamer.shards.values import Sample, value_of

Output = Literal["tar", "parquet"]


class SampleTaker(Protocol):
    """What samples are given to, one after the other."""

    @abstractmethod
    def add(self, sample: Sample, ordinal: int) -> None:
        """Takes a sample, whose bytes must stay as they are until `flush`.

        Args:
            sample: values by field, and its "__key__" where it has one.
            ordinal: its number in the source.

        Raises:
            PackError: it cannot be written.
        """

    @abstractmethod
    def flush(self) -> None:
        """Gives up all bytes that samples have brought."""


class ShardWriter(SampleTaker, AbstractContextManager["ShardWriter"], Protocol):
    """Writes one file; the same samples give the same bytes."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @property
    @abstractmethod
    def filled(self) -> int:
        """Bytes so far, before compression."""

    @abstractmethod
    def finish(self) -> Written:
        """Writes the end of the file, and tells what it consists of."""


class KindFinder(SampleTaker):
    """Finds the kinds of fields, and writes nothing.

    Attributes:
        kinds: by field, of each sample.
    """

    def __init__(self) -> None:
        self.kinds: list[dict[str, str]] = []

    def add(self, sample: Sample, ordinal: int) -> None:
        """Notes the kinds of a sample."""
        self.kinds.append(columns.kinds_of(columns.plain_values(sample)))

    def flush(self) -> None:
        """Nothing: no bytes are kept."""


def shard_writer(job: Job, path: Path) -> ShardWriter:
    """The writer of one shard.

    Args:
        job: whose shard it is.
        path: of a file that is there already; it is overwritten.
    """
    if job.output == "tar":
        return TarShard(path)
    check_output(job.output)
    from streamer.shards.outputs.parquet import ParquetShard

    return ParquetShard(path, [columns.Column(name, kind) for name, kind in job.described["columns"]])


def field_value(output: str, field: Field) -> tuple[str, object]:
    """Name and value of a field of a source, as the writer of this output takes them."""
    return value_of(field) if output == "tar" else columns.field_value(field)


def check_output(output: str) -> None:
    """Refuses an output that cannot be written.

    Raises:
        ConfigError: there is no such one, or pyarrow cannot be imported.
    """
    if output not in get_args(Output):
        raise ConfigError(
            f"format={output!r} is not one of {', '.join(get_args(Output))}, which shards are written as; the format "
            "of the source is source_format=",
            field="format",
        )
    if output == "tar":
        return
    try:
        import streamer.shards.outputs.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "Parquet is written with pyarrow, which cannot be imported: pip install 'streamer-data[parquet]' "
            f"({error})",
            field="format",
        ) from error
