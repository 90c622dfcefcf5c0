"""Asks for bytes of objects: surveys and indexes yield `Need`s, and are sent the bytes. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TypeAlias, TypeVar

from streamer.formats.failures import DamagedError
from streamer.manifest.blocks import Block
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Answer, Examine, Indexing, LeftOut, Need, Note, Short, Span

Result = TypeVar("Result")
# A part of a survey or an index that asks for bytes and returns what it found in them.
Reading: TypeAlias = Generator[Need | tuple[Need, ...], Answer, Result]
# One that asks recoders, too.
Asking: TypeAlias = Generator[Need | tuple[Need, ...] | Examine, Answer, Result]
Range: TypeAlias = tuple[int, int]

# Objects of which the same part is in memory at once: 16 MiB of the ends of zip files.
_READ_AT_ONCE = 256


def read_range(start: int, stop: int, record: ObjectRecord | None = None) -> Reading[memoryview]:
    """Asks for the bytes `[start, stop)` of an object (None: the one being indexed), unless there are none."""
    if start >= stop:
        return memoryview(b"")
    content = yield Need(start, stop, record)
    assert isinstance(content, memoryview)
    return content


def read_ranges(needs: Sequence[Need]) -> Reading[tuple[memoryview, ...]]:
    """Asks for several ranges at once, unless there are none."""
    if not needs:
        return ()
    contents = yield tuple(needs)
    assert isinstance(contents, tuple)
    return contents


def read_in_memory(steps: Reading[Result], content: memoryview) -> Result:
    """Answers what a reading asks for out of an object that is in memory; returns what it returns."""
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
    """Runs readings of one object step by step together, so that what they ask for is asked for at once."""
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
    """Reads the same part of all objects, of many at once; returns what `parse` makes of it and of the size, by url.

    Damaged and empty objects are left out: the index of such an object reports it, or leaves it out.
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
    """Joins ranges of one object that have less than `near_bytes` between them."""
    needs: list[Need] = []
    for start, stop in sorted(ranges):
        if needs and start - needs[-1].stop < near_bytes:
            needs[-1] = Need(needs[-1].start, max(stop, needs[-1].stop), record)
        else:
            needs.append(Need(start, stop, record))
    return needs


def joined_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Joins ranges that follow each other without a gap; leaves out empty ones."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif stop > start:
            joined.append((start, stop))
    return tuple(joined)


def collected(
    steps: Indexing, add: Callable[[Span | Block], None]
) -> Generator[Need | tuple[Need, ...] | Examine, Answer, None]:
    """Runs an index inside of another one, which passes on its needs: `add` gets the samples."""
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
    """Yields samples that follow each other, from the one that begins at byte `start` on."""
    for first, stop in pairwise(edges):
        if first >= start:
            yield Span(first, stop)
