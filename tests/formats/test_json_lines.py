"""JSON lines meet the contract of the formats; and what must be said of bad ones."""

from __future__ import annotations

import pytest

from streamer.errors import DecodeError, ManifestError
from streamer.formats import json_lines
from streamer.formats.base import Facts, SampleName, Span
from streamer.formats.json_lines import JsonLines
from tests.formats.cases import Case, find, read_case
from tests.formats.contract import FormatContract


class TestJsonLines(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [read_case(JsonLines(), "jsonl")]


def lines_of(content: bytes) -> list[bytes]:
    ((_, spans),) = find(JsonLines(), {"a.jsonl": content}).items
    return [content[span.start : span.stop] for span in spans if isinstance(span, Span)]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"1\n2", [b"1", b"2"]),
        (b"1\n2\n", [b"1", b"2"]),
        (b"\n\n 1 \n\t\r\n2\r\n", [b" 1 ", b"2\r"]),
        (b"\xef\xbb\xbf{}\n", [b"{}"]),
        (b"\xef\xbb\xbf", []),
        (b"\n", []),
        (b'"\xe2\x80\xa8\x0b"\n', [b'"\xe2\x80\xa8\x0b"']),
    ],
)
def test_lines(content, lines):
    """End with a newline or with the object; blank ones, carriage returns and a byte order mark are nothing."""
    assert lines_of(content) == lines


def test_a_line_that_is_too_long(monkeypatch):
    """Whether it ends or not, with its place; it is not read to its end."""
    monkeypatch.setattr(json_lines, "LONGEST_LINE", 100)
    for content in (b"1\n" + b"2" * 101, b"1\n" + b"2" * 101 + b"\n3"):
        with pytest.raises(ManifestError, match="a line of more than 100 bytes") as caught:
            lines_of(content)
        assert caught.value.details["offset"] == 2
    assert lines_of(b"1\n" + b"2" * 100 + b"\n") == [b"1", b"2" * 100]


def test_compressed_files_are_named():
    """What has the name of a plain file and the first bytes of a packed one."""
    with pytest.raises(ManifestError, match="is compressed"):
        find(JsonLines(), {"a.jsonl": b"\x1f\x8b\x08" + bytes(100)})


@pytest.mark.parametrize(
    "line",
    [b"{", b"{}x", b"nothing", b'{"a": nan}', b'{"__key__": 3}', b"[" * 10**5, b"", b'{"a":\0}'],
)
def test_what_is_no_json(line):
    """Is a DecodeError."""
    with pytest.raises(DecodeError, match="is not JSON"):
        JsonLines().opener(Facts()).open(memoryview(line), SampleName())
