"""JSON lines meet the contract of the formats; which bytes are lines, and which files are refused."""

from __future__ import annotations

import gzip
import json

import pytest

from streamer.errors import DecodeError, ManifestError, RecodeError
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
    """Lines end with a newline or with the object; blank ones and a byte order mark are no samples."""
    assert lines_of(content) == lines


@pytest.mark.parametrize("end", [b"", b"\n3"], ids=["unended", "ended"])
def test_a_line_that_is_too_long(end, monkeypatch):
    """A line longer than LONGEST_LINE is refused with its offset, whether it ends or not."""
    monkeypatch.setattr(json_lines, "LONGEST_LINE", 100)
    with pytest.raises(ManifestError, match="a line of more than 100 bytes") as caught:
        lines_of(b"1\n" + b"2" * 101 + end)
    assert caught.value.details["offset"] == 2
    assert lines_of(b"1\n" + b"2" * 100 + b"\n") == [b"1", b"2" * 100]


def test_compressed_files_are_named():
    """A compressed file that is named as a plain one is refused as compressed."""
    with pytest.raises(ManifestError, match="is compressed"):
        find(JsonLines(), {"a.jsonl": b"\x1f\x8b\x08" + bytes(100)})


@pytest.mark.parametrize(
    "line",
    [b"{", b"{}x", b"nothing", b'{"a": nan}', b'{"__key__": 3}', b"[" * 10**5, b"", b'{"a":\0}'],
)
def test_what_is_no_json(line):
    """A line that is not JSON is a DecodeError when it is opened."""
    with pytest.raises(DecodeError, match="is not JSON"):
        JsonLines().opener(Facts()).open(memoryview(line), SampleName())


def indexed(objects: dict[str, bytes]) -> list[str]:
    """Returns the names of the files that are indexed."""
    return sorted(source.record.url.rpartition("/")[2] for source, _ in find(JsonLines(), objects).items)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.json", "b.JSON"], ["a.json", "b.JSON"]),
        (["a.json", "b.jsonl", "c.ndjson"], ["b.jsonl", "c.ndjson"]),
        (["info.json", "c4-train.00000-of-01024.json", "c4-train.00001-of-01024.json"], None),
        ([".a.json", "b.json", "c.txt"], ["b.json"]),
    ],
)
def test_lines_in_files_that_are_called_json(names, expected):
    """Files called .json are lines where none is called .jsonl or numbered; otherwise they are documents."""
    lines = dict.fromkeys(names, b'{"a": 1}\n{"a": 2}\n')
    assert indexed(lines) == (expected or names[1:])


def test_packed_lines_in_files_that_are_called_json():
    """Compressed lines in numbered files called .json.gz, as C4 and many of the Hub have them, are read."""
    content = gzip.compress(b'{"text": "a"}\n{"text": "b"}\n')
    ((_, blocks),) = find(JsonLines(), {"c4-train.00000-of-01024.json.gz": content}).items
    assert [block.samples for block in blocks] == [2]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([{"a": 1}, {"a": 2}]).encode(),
        json.dumps([{"a": 1}, {"a": 2}]).encode() + b"\n",
        json.dumps([{"a": 1}, {"a": 2}], indent=1).encode(),
        json.dumps({"a": 1, "b": [2]}, indent=4).encode(),
        b"\xef\xbb\xbf[{\n}]",
        b'[{"a": 1},\n {"a": 2}]\n',
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_document_is_not_lines(compress, content):
    """A list or an object over several lines, plain or compressed, is refused as one JSON document."""
    name = "a.json" if compress is bytes else "a.json.gz"
    with pytest.raises((ManifestError, RecodeError), match="one JSON document, not a JSON value on each line"):
        find(JsonLines(), {name: compress(content)})


@pytest.mark.parametrize("content", [b'[{"a": 1}]\n[{"a": 2}]\n', b"[1]\n", b"{}"])
def test_lists_are_lines_too(content):
    """A line may be a list, also of objects, and a file may be one line."""
    assert b"".join(line + b"\n" for line in lines_of(content)).strip() == content.strip()
