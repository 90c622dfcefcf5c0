"""The interface of the outputs of a shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

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
