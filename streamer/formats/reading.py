"""Lets surveys and indexes ask for bytes of objects: its generators yield `Need`s, and are sent the bytes.

Most formats and the readers of `media/` use it. The I/O is done by what runs a survey or an index (`indexing/`). A
`Window` moves forward over one object, for formats whose samples are found one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TypeAlias, TypeVar

from streamer.errors import ShortReadError
from streamer.formats.failures import DamagedError
from streamer.manifest.blocks import Block
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Answer, Examine, Indexing, LeftOut, Need, Note, Short, Span

# The bytes [start, stop) of an object.
Range = tuple[int, int]

Result = TypeVar("Result")
# A part of a survey or an index that asks for bytes and returns what it found in them.
Reading: TypeAlias = Generator[Need | tuple[Need, ...], Answer, Result]
# A reading that asks recoders, too.
Asking: TypeAlias = Generator[Need | tuple[Need, ...] | Examine, Answer, Result]

# Objects of which `read_each` has the same part in memory at once: the ends of zip files are then 16 MiB.
_READ_AT_ONCE = 256


def read_range(start: int, stop: int, record: ObjectRecord | None = None) -> Reading[memoryview]:
    """Asks for the bytes `[start, stop)` of an object and returns them.

    An empty range is not asked for. `record` is the object; None means the one that is being indexed.
    """
    if start >= stop:
        return memoryview(b"")
    content = yield Need(start, stop, record)
    assert isinstance(content, memoryview)
    return content


def read_ranges(needs: Sequence[Need]) -> Reading[tuple[memoryview, ...]]:
    """Asks for several ranges at once and returns their bytes in the same order; does nothing without needs."""
    if not needs:
        return ()
    contents = yield tuple(needs)
    assert isinstance(contents, tuple)
    return contents


def read_in_memory(steps: Reading[Result], content: memoryview) -> Result:
    """Runs a reading over an object that is in memory, and returns the reading's result.

    Args:
        steps: the reading, which asks for ranges of one object.
        content: all bytes of the object.
    """
    answer: Answer = None
    while True:
        try:
            needs = steps.send(answer)
        except StopIteration as end:
            found: Result = end.value
            return found
        if isinstance(needs, Need):
            answer = content[needs.start : needs.stop]
        else:
            answer = tuple(content[need.start : need.stop] for need in needs)


def read_together(readings: Iterable[Reading[Result]]) -> Reading[list[Result]]:
    """Runs several readings step by step together, and asks at once for what all of them need.

    Returns their results in the order of `readings`.
    """
    running = list(readings)
    results: dict[int, Result] = {}
    answers: dict[int, Answer] = dict.fromkeys(range(len(running)))
    while answers:
        asked: dict[int, Need | tuple[Need, ...]] = {}
        for number, answer in answers.items():
            try:
                asked[number] = running[number].send(answer)
            except StopIteration as end:
                results[number] = end.value
        needs = [need for item in asked.values() for need in (item if isinstance(item, tuple) else (item,))]
        contents = iter((yield from read_ranges(needs)))
        answers = {
            number: tuple(next(contents) for _ in item) if isinstance(item, tuple) else next(contents)
            for number, item in asked.items()
        }
    return [results[number] for number in range(len(running))]


def read_each(
    records: Sequence[ObjectRecord],
    place: Callable[[ObjectRecord], Range],
    parse: Callable[[memoryview, int], Result],
) -> Reading[dict[str, Result]]:
    """Reads one part of each object, and parses it.

    Args:
        records: the objects.
        place: returns the byte range to read of an object.
        parse: makes a result of the bytes of the part and of the object's size; raises DamagedError.

    Returns:
        The results by url. Empty objects, and those for which `parse` raises DamagedError, are left out: the index
        reports them when it comes to them.
    """
    filled = [record for record in records if record.size]
    found: dict[str, Result] = {}
    for first in range(0, len(filled), _READ_AT_ONCE):
        some = filled[first : first + _READ_AT_ONCE]
        contents = yield from read_ranges([Need(*place(record), record) for record in some])
        for record, content in zip(some, contents, strict=True):
            with suppress(DamagedError):
                found[record.url] = parse(content, record.size)
    return found


def near_needs(record: ObjectRecord, ranges: Iterable[Range], near_bytes: int) -> list[Need]:
    """Returns needs for ranges of one object; ranges with less than `near_bytes` between them are joined to one."""
    return [Need(start, stop, record) for start, stop in join_near_ranges(sorted(ranges), near_bytes)]


def collect_samples(
    steps: Indexing, add: Callable[[Span | Block], None]
) -> Generator[Need | tuple[Need, ...] | Examine, Answer, None]:
    """Runs an index inside of another one: yields its needs, and calls `add` with each sample or block.

    Notes of the inner index, and what it says about samples that are left out, are dropped.
    """
    answer: Answer = None
    with suppress(StopIteration):
        while True:
            item = steps.send(answer)
            if isinstance(item, Need | tuple | Examine):
                answer = yield item
                continue
            answer = None
            if not isinstance(item, Short | Note | LeftOut):
                add(item)


def spans_between(edges: Sequence[int], start: int) -> Generator[Span, Answer, None]:
    """Yields the samples between consecutive edges, from the one that begins at byte `start` on.

    Args:
        edges: bytes at which samples begin, and the end of the last one.
        start: byte at which a sample begins; those before it are left out.
    """
    for first, stop in pairwise(edges):
        if first >= start:
            yield Span(first, stop)


# Max bytes of a request. 8 MiB are best in cost and speed on object stores (AnyBlob, PVLDB 16(11); see config).
READ_BYTES = 8 << 20
# A gap at least this long is jumped over. A request costs about as long as 3-4 MiB on one connection
# (30 ms first byte + 90 MB/s), and what is read anyway warms the cache.
JUMP_BYTES = 4 << 20
# Bytes of the first request after a jump, where only a header is sure to be wanted.
PROBE_BYTES = 64 << 10


class Window:
    """The run of bytes that an index holds of an object. It only moves forward.

    Args:
        size: length of the object, bytes.
        start: byte at which reading begins.
        probe: whether the first request is a short one, as after a jump: for headers that may be far apart.

    Attributes:
        size: length of the object, bytes.
        start: byte of the object at which `content` begins.
        content: the bytes that are held.
    """

    def __init__(self, size: int, start: int = 0, *, probe: bool = False) -> None:
        self.size = size
        self.start = start
        self.content = memoryview(b"")
        self._next_bytes = PROBE_BYTES if probe else READ_BYTES

    @property
    def stop(self) -> int:
        """The byte of the object behind the last one that is held."""
        return self.start + len(self.content)

    def covers(self, start: int, stop: int) -> bool:
        """Whether `[start, stop)` of the object is held."""
        return self.start <= start and stop <= self.start + len(self.content)

    def take(self, start: int, stop: int) -> bytes:
        """Returns a copy of the bytes `[start, stop)` of the object, all of which must be held."""
        return bytes(self.content[start - self.start : stop - self.start])

    def reach(self, start: int, stop: int) -> Generator[Need, Answer, None]:
        """Moves forward until `[start, stop)` of the object is held.

        It asks for up to `READ_BYTES` at a time, which may reach behind `stop`.
        `stop` must not be behind the end of the object, nor `start` before the first byte that is held. A gap of
        `JUMP_BYTES` or more before `start` is not read. After a request, bytes before `start` may be dropped.

        Raises:
            ShortReadError: an answer has another length than was asked for.
        """
        if start - self.stop >= JUMP_BYTES:
            self.start = start
            self.content = memoryview(b"")
            self._next_bytes = PROBE_BYTES
        while self.stop < stop:
            begin = self.stop
            end = min(begin + self._next_bytes, self.size)
            self._next_bytes = min(2 * self._next_bytes, READ_BYTES)
            received = yield Need(begin, end)
            if not isinstance(received, memoryview) or len(received) != end - begin:
                raise ShortReadError(f"asked for bytes {begin} to {end}, got {received!r}")
            if start >= begin:
                self.start = begin
                self.content = received
            else:  # what is wanted lies over two windows: rare and short
                kept = self.content[start - self.start :]
                self.start = start
                self.content = memoryview(bytes(kept) + bytes(received))


# ---------------------------------------------------------------- ranges


def join_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Joins ranges of which one ends where the next one of the sequence begins; leaves out empty ones."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif stop > start:
            joined.append((start, stop))
    return tuple(joined)


def join_near_ranges(ranges: Iterable[Range], near_bytes: int) -> tuple[Range, ...]:
    """Joins ranges, ordered by their beginnings, that overlap or have less than `near_bytes` between them."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and start - joined[-1][1] < near_bytes:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return tuple(joined)
