"""Decoders of texts, JSON and class numbers."""

from __future__ import annotations

import pytest

from streamer.decode import values


def test_text_is_utf8_and_nothing_else():
    """Text is UTF-8; other bytes raise UnicodeDecodeError and are not replaced."""
    assert values.decode_text(memoryview("Grüße".encode())) == "Grüße"
    with pytest.raises(UnicodeDecodeError):
        values.decode_text(b"\xff\xfe")


def test_json_and_json_lines():
    """JSON is one document, and JSON lines one per line without the empty ones."""
    assert values.decode_json(memoryview(b'{"a": [1, 2.5, null]}')) == {"a": [1, 2.5, None]}
    assert values.decode_jsonl(b'{"a": 1}\n\n[2]\r\n') == [{"a": 1}, [2]]
    with pytest.raises(ValueError, match="Expecting"):
        values.decode_json(b"{")


@pytest.mark.parametrize(("content", "number"), [(b"7", 7), (b"  12\n", 12), (b"-1", -1)])
def test_a_class_is_a_number_in_digits(content, number):
    """A class is a number in digits, with white space around it ignored."""
    assert values.decode_class(memoryview(content)) == number


def test_a_class_that_is_no_number_is_an_error():
    """A class that is a name raises ValueError."""
    with pytest.raises(ValueError, match="dog"):
        values.decode_class(b"dog")


def test_several_documents_say_what_they_may_be():
    """JSON lines in a .json field, as C4 has them, raise ValueError that names format='jsonl'."""
    with pytest.raises(ValueError, match=r"Extra data: line 2 .*; JSON lines are read with format='jsonl'"):
        values.decode_json(b'{"a": 1}\n{"a": 2}\n')
