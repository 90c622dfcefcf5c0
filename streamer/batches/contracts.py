"""Names that both halves of the loader use: the one that makes samples, and the one that moves batches."""

from __future__ import annotations

from collections.abc import Callable

# A chunk that is still missing or wrong after this many new leases is an error. Counted for each chunk: a program that
# overwrites the cache damages many of one batch.
REREADS = 3


class ChunkUnreadableError(Exception):
    """A chunk is missing or wrong: lease it again, then repeat the batch.

    A `StreamReader` raises it instead of the FileNotFoundError or IntegrityError of the chunk's file, to tell it from
    an error of the same type in a user's transform.

    Args:
        chunk: its number in the manifest.
        reason: for the engine's log.
    """

    def __init__(self, chunk: int, reason: str) -> None:
        super().__init__(chunk, reason)
        self.chunk = chunk
        self.reason = reason

    def __str__(self) -> str:
        return f"chunk {self.chunk}: {self.reason}"


# A user's `collate_fn`: list of samples -> batch.
Collate = Callable[[list[object]], object]
