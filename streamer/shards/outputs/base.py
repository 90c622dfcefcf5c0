"""Defines the interface of the outputs of a shard: what tars, Parquet and tokens have in common.

The outputs beside it implement it. `shards/prepared.py` describes the job by it, and `pack.py` and `task.py` write
shards by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from streamer.errors import ConfigError
from streamer.formats.base import Field
from streamer.shards.receipts import Written
from streamer.shards.values import Sample


class SampleTaker(ABC):
    """Accepts samples one after the other: writers of shards, and `registry.KindFinder`, which writes nothing."""

    @abstractmethod
    def add(self, sample: Sample, ordinal: int) -> None:
        """Takes a sample, whose bytes must not change until `flush`.

        Args:
            sample: values by field, and its "__key__" if it has one.
            ordinal: its number in the source.

        Raises:
            PackError: the sample cannot be written.
        """

    def flush(self) -> None:  # noqa: B027 - most outputs copy
        """Writes what still refers to bytes of samples, which may change afterwards; does nothing if `add` copies."""


class ShardWriter(SampleTaker):
    """Writes the file of one shard. The same samples give the same bytes. Context manager, which closes the file.

    All methods raise OSError if the file cannot be written.

    Attributes:
        filled: bytes of the samples so far, before compression.
        index: content of the index file, after `finish`; b"" if there is none.
    """

    filled = 0
    index = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @abstractmethod
    def finish(self) -> Written:
        """Writes the rest of the file, and returns the facts about it; no sample may be added afterwards.

        Raises:
            PackError: the samples together make no valid file.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the file, whether it is finished or not."""


class Output(ABC):
    """A form in which shards are written, such as tars. It has no state.

    Attributes:
        name: name of the output, as the user writes it.
        extension: extension of the names of shards, without a dot.
        format: name of the format by which shards are read.
        overhead_bytes: bytes that a sample takes in a shard besides its own.
        needs_kinds: whether `describe` is asked before the first shard, with the kinds of the first samples.
        is_indexed_by_receipts: whether receipts say where each sample is, so that the manifest is made without reading
            shards.
        has_files: whether each field becomes a file of its sample, so that keys must be unique.
    """

    name: ClassVar[str]
    extension: ClassVar[str]
    format: ClassVar[str]
    overhead_bytes: ClassVar[int] = 0
    needs_kinds: ClassVar[bool] = True
    is_indexed_by_receipts: ClassVar[bool] = False
    has_files: ClassVar[bool] = False

    @abstractmethod
    def open_writer(self, path: Path, described: Mapping[str, Any]) -> ShardWriter:
        """Opens the writer of one shard.

        Args:
            path: file of the shard, which exists and is overwritten.
            described: description of the job, which includes what `describe` has returned.

        Raises:
            ConfigError: a library cannot be imported.
            OSError: the file cannot be opened.
        """

    @abstractmethod
    def field_value(self, field: Field) -> tuple[str, object]:
        """Returns name and value of a field of a source in the form that `ShardWriter.add` takes.

        Raises:
            DecodeError, ValueError: the bytes are not what the kind says.
        """

    def check(self, vocab_size: int | None = None) -> None:
        """Makes sure that shards can be written.

        Args:
            vocab_size: number of different tokens, or None if the user does not say it.

        Raises:
            ConfigError: the output has no vocabulary, or none of this size, or a library cannot be imported.
        """
        if vocab_size is not None:
            raise refuse_vocab_size(self.name, vocab_size)

    def find_kinds(self, values: Mapping[str, object]) -> dict[str, str]:
        """Returns the kinds of values of a sample by field, for `describe`; {} if the output needs no kinds.

        Raises:
            PackError: a value cannot be written.
        """
        return {}

    def describe(
        self, kinds: Sequence[Mapping[str, str]], known: Mapping[str, str], vocab_size: int | None
    ) -> dict[str, Any]:
        """Returns what all writers of shards must agree on, for the description of the job; {} if nothing.

        Args:
            kinds: kinds of the first samples, from `find_kinds`.
            known: kinds by field, as far as the source knows them of all samples.
            vocab_size: number of different tokens, or None if the user does not say it.

        Raises:
            PackError, ConfigError: the samples cannot be written as this output.
        """
        return {}


MAX_TOKENS = 1 << 31


def refuse_vocab_size(output: str, vocab_size: int) -> ConfigError:
    """Returns the error for a vocabulary that the output of this name cannot have."""
    return ConfigError(
        f"vocab_size={vocab_size!r} with output_format={output!r}: a number from 1 to {MAX_TOKENS}, of tokens",
        field="vocab_size",
    )
