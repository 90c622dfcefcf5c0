"""Moves a window forward over one object, for formats whose samples are found one after the other. No I/O."""

from __future__ import annotations

from collections.abc import Generator

from streamer.errors import ShortReadError
from streamer.manifest.protocols import Answer, Need

# Windows of 8 MiB: the best of cost and speed on object stores (AnyBlob, PVLDB 16(11); see config).
READ_BYTES = 8 << 20
# A gap at least this long is jumped over. A request costs about as long as 3-4 MiB on one connection
# (30 ms first byte + 90 MB/s), and what is read anyway warms the cache.
JUMP_BYTES = 4 << 20
# After a jump only a header is sure to be wanted.
PROBE_BYTES = 64 << 10


class Window:
    """The bytes of an object that an indexer holds.

    Args:
        size: length of the object, bytes.
        start: where reading begins.
        probe: begins as after a jump, with little: where only headers are wanted that may be far apart.

    Attributes:
        start: place of `content` in the object.
        content: the bytes.
    """

    def __init__(self, size: int, start: int = 0, *, probe: bool = False) -> None:
        self.size = size
        self.start = start
        self.content = memoryview(b"")
        self._next_bytes = PROBE_BYTES if probe else READ_BYTES

    @property
    def stop(self) -> int:
        """Where the bytes end in the object."""
        return self.start + len(self.content)

    def covers(self, start: int, stop: int) -> bool:
        """Whether `[start, stop)` of the object is held."""
        return self.start <= start and stop <= self.start + len(self.content)

    def take(self, start: int, stop: int) -> bytes:
        """Returns a copy of `[start, stop)` of the object, which is held."""
        return bytes(self.content[start - self.start : stop - self.start])

    def reach(self, start: int, stop: int) -> Generator[Need, Answer, None]:
        """Moves forward until `[start, stop)` is held; jumps if the gap is worth it. Drops what is before `start`."""
        if start - self.stop >= JUMP_BYTES:
            self.start, self.content = start, memoryview(b"")
            self._next_bytes = PROBE_BYTES
        while self.stop < stop:
            yield from self._advance(keep_from=start)

    def _advance(self, keep_from: int) -> Generator[Need, Answer, None]:
        begin = self.stop
        end = min(begin + self._next_bytes, self.size)
        self._next_bytes = min(2 * self._next_bytes, READ_BYTES)
        received = yield Need(begin, end)
        if not isinstance(received, memoryview) or len(received) != end - begin:
            raise ShortReadError(f"asked for bytes {begin} to {end}, got {received!r}")
        if keep_from >= begin:
            self.start = begin
            self.content = received
        else:  # what is wanted lies over two windows: rare and short
            kept = self.content[keep_from - self.start :]
            self.start, self.content = keep_from, memoryview(bytes(kept) + bytes(received))
