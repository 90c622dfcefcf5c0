"""Tests of values of fields and of their parts, and of chunks that several threads read, in their order."""

from __future__ import annotations

import threading

import pytest

from streamer.batches.scan import MissingFieldError, MissingPartError, field_value, scan_chunks
from streamer.decode.dispatch import SampleDecoder
from streamer.formats.base import Field


def test_results_come_in_the_order_of_the_chunks_although_several_are_read_at_once():
    """Results come in the order of the chunks, of which at most 16 are begun before the first has ended."""
    other = threading.Event()
    begun = []

    def work(chunk: int) -> int:
        begun.append(chunk)
        if chunk == 0:
            assert other.wait(10)
        if chunk == 7:
            other.set()
        return chunk * 10

    results = scan_chunks(range(40), work)
    assert next(results) == 0
    assert max(begun) <= 16
    assert list(results) == [chunk * 10 for chunk in range(1, 40)]


def test_a_generator_that_is_closed_begins_no_further_chunks():
    """A generator that is closed, or ends with the error of a chunk at its place, begins no further chunks."""
    begun = []

    def work(chunk: int) -> int:
        begun.append(chunk)
        if chunk == 3:
            raise ValueError("damaged")
        return chunk

    results = scan_chunks(range(1000), work)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="damaged"):
        next(results)
    assert len(begun) <= 20
    results = scan_chunks(range(1000), work)
    next(results)
    results.close()
    assert len(begun) <= 40


def test_a_value_may_be_a_part_of_a_field():
    """A dotted name is a field of that name, or a part of a JSON field; null has no parts, and is null."""
    fields = {
        "json": Field("json", memoryview(b'{"size": {"width": 3}, "none": null}')),
        "a.json": Field("a.json", memoryview(b"7")),
    }
    decoder = SampleDecoder()
    assert field_value("json.size.width", fields, decoder) == 3
    assert field_value("a.json", fields, decoder) == 7
    assert field_value("json.none", fields, decoder) is None
    assert field_value("json.none.any", fields, decoder) is None
    with pytest.raises(MissingPartError, match=r"^field 'json' has no 'height' \(width\)"):
        field_value("json.size.height", fields, decoder)
    with pytest.raises(MissingFieldError, match=r"^it has no field 'txt'; it has __key__, json, a.json$"):
        field_value("txt", fields, decoder)
