"""The interface of the outputs of a shard."""

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
    """Accepts samples one after the other."""

    @abstractmethod
    def add(self, sample: Sample, ordinal: int) -> None:
        """Takes a sample, whose bytes must not change until `flush`.

        Args:
            sample: values by field, and its "__key__" if it has one.
            ordinal: its number in the source.

        Raises:
            PackError: it cannot be written.
        """

    def flush(self) -> None:  # noqa: B027 - most outputs copy
        """Releases all bytes of the samples; does nothing if they are copied."""


class ShardWriter(SampleTaker):
    """Writes one file; the same samples give the same bytes. Context manager.

    Attributes:
        filled: bytes written so far, before compression.
        index: the index file, after `finish`; b"" if there is none.
    """

    filled = 0
    index = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @abstractmethod
    def finish(self) -> Written:
        """Writes the end of the file, and returns its pieces."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file; idempotent."""


class Output(ABC):
    """A form in which shards are written. It has no state.

    Attributes:
        name: Name of the output, as the user writes it.
        extension: Extension of the names of shards.
        format: Name of the format by which shards are read.
        overhead_bytes: Bytes of a sample in a shard besides its own.
        needs_kinds: Whether the first samples say what all shards have; otherwise `describe` is not asked.
        is_indexed_by_receipts: Whether receipts say where each sample is, so that the manifest is made without reading.
        has_files: Whether each field becomes a file of its sample, which needs a name of its own.
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
        """Opens the writer of one shard, which overwrites an existing file.

        Args:
            path: File of the shard.
            described: Description of the job, which has what `describe` has returned.
        """

    @abstractmethod
    def field_value(self, field: Field) -> tuple[str, object]:
        """Returns name and value of a field of a source in the form that the writer accepts."""

    def check(self, vocab_size: int | None = None) -> None:
        """Makes sure that shards can be written.

        Raises:
            ConfigError: The output has no vocabulary, or not one of this size, or a library cannot be imported.
        """
        if vocab_size is not None:
            raise refuse_vocab_size(self.name, vocab_size)

    def find_kinds(self, values: Mapping[str, object]) -> dict[str, str]:
        """Returns the kind of each value of a sample, for `describe`."""
        return {}

    def describe(
        self, kinds: Sequence[Mapping[str, str]], known: Mapping[str, str], vocab_size: int | None
    ) -> dict[str, Any]:
        """Returns what all writers of shards need, for the description of the job.

        Args:
            kinds: Kinds of the first samples, from `find_kinds`.
            known: Kinds by field, if the source names them.
            vocab_size: Number of different tokens, if the user says it.

        Raises:
            PackError, ConfigError: The samples cannot be written like this.
        """
        return {}


MAX_TOKENS = 1 << 31


def refuse_vocab_size(output: str, vocab_size: int) -> ConfigError:
    """Returns the error for a vocabulary that an output cannot have."""
    return ConfigError(
        f"vocab_size={vocab_size!r} with output_format={output!r}: a number from 1 to {MAX_TOKENS}, of tokens",
        field="vocab_size",
    )
