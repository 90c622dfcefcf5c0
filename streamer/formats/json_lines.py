"""The format "jsonl": every line of a file is one sample, and the values of its JSON object are the fields.

`formats/registry.py` makes it for engine, recoders and workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from streamer.errors import DecodeError
from streamer.formats.base import Facts, Field, Format, SampleName
from streamer.formats.compressed import CompressedRecoder, index_compressed, is_compressed
from streamer.formats.failures import check_not_empty, make_damage_error, make_refusal
from streamer.formats.names import find_compression_of_bytes, is_shard
from streamer.formats.reading import Window
from streamer.manifest.beside import is_hidden
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Note, Source, Span, Survey, Surveying

_ENDINGS = re.compile(r"\.(?:(jsonl|ndjson|jsonlines)|json)(?:\.(?:gz|zst|zstd|bz2|xz))?$")
_MARK = b"\xef\xbb\xbf"
# White space within a line; JSON has no other.
_BLANK = b" \t\r"
_NEWLINE = 10
# Max bytes of a line: a sample is read as a whole, and a file with a longer line is something else.
LONGEST_LINE = 256 << 20


class JsonLines(Format, frozen=True, forbid_unknown_fields=True):
    """Reads JSON lines in UTF-8, also compressed (gzip, bzip2, xz, Zstandard). Blank lines are not samples."""

    name = "jsonl"

    def accepts(self, key: str) -> bool:
        """Whether an object may have JSON lines: `.jsonl`, `.ndjson`, `.jsonlines` or `.json`, or one compressed."""
        return _ENDINGS.search(key.lower()) is not None and not is_hidden(key)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Takes the objects whose names say most clearly that they have lines.

        The best names are those of JSON lines, then `.json` with the name of a shard, then other `.json`. So `.json`
        beside `.jsonl` are left out, as documents.
        """
        yield from ()
        doubts = [_doubt(record.url) for record in accepted]
        least = min(doubts, default=0)
        return Survey([Source(record) for record, doubt in zip(accepted, doubts, strict=True) if doubt == least])

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the lines of a file that are not blank; of a compressed file it yields one block.

        Raises:
            ManifestError: the file is empty, has a line that is too long, is one JSON document, or is compressed and
                its name does not say so. For a compressed file, as `index_compressed`.
            ConfigError: a library that decompresses the file is missing.
        """
        record = source.record
        if folders := [part for part in source.key.split("/")[:-1] if "=" in part.strip("=")]:
            yield Note("files are in folders key=value, which are no fields of JSON lines", 1, "/".join(folders))
        if is_compressed(record.url):
            yield from index_compressed(self, source, facts)
        else:
            # At most one window of the file is in memory.
            check_not_empty(record)
            window = Window(record.size, start)
            line = start
            blank = True
            while (base := window.stop) < record.size:
                yield from window.reach(base, min(base + len(_MARK) + 1, record.size))
                content = window.content
                if base == 0:
                    line = _begin(record, content)
                found = np.flatnonzero(np.frombuffer(content, np.uint8) == _NEWLINE)
                for stop in (found + base).tolist():
                    blank = blank and _is_blank(content, max(line - base, 0), stop - base)
                    if not blank:
                        yield _line(record, line, stop)
                    line = stop + 1
                    blank = True
                blank = blank and _is_blank(content, max(line - base, 0), len(content))
                if window.stop - line > LONGEST_LINE:
                    raise _too_long(record, line)
            if not blank:
                yield _line(record, line, record.size)

    def recoder(self, facts: Facts) -> CompressedRecoder:
        """Returns what decompresses files and makes records of their lines."""
        return CompressedRecoder(self, facts)

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        """Returns the key and the fields of a line.

        Each value of a JSON object is a field, but a text "__key__" is the key. A line that is no JSON object is a
        single field, "json". Without a key the first result is None.

        Raises:
            DecodeError: the line is not JSON, or "__key__" is not a text.
        """
        try:
            if bytes(content[:1]) != b"{" and bytes(content).lstrip()[:1] != b"{":
                _RAW.decode(content)
                return None, [Field("json", content, "json")]
            values = _VALUES.decode(content)
            key = values.pop("__key__", None)
            text = None if key is None else _TEXT.decode(key)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise DecodeError(
                f"a line of {len(content)} bytes is not JSON: {reason_of(content, error)}", offset=0
            ) from error
        return text, [Field(each, memoryview(value), "json") for each, value in values.items()]


def reason_of(content: memoryview, error: Exception) -> str:
    """Returns a text that says why a line is not JSON.

    It explains what Python's `json` writes and JSON does not have, and UTF-16. For anything else it is that of `error`.
    """
    if half := _HALF_PAIR.search(bytes(content)):
        return (
            f"it has half of a surrogate pair ({half[0].decode()!r}), which is no character: write the text with "
            "U+FFFD in its place (text.encode('utf-8', 'replace'))"
        )
    if bytes(content[:2]) in _UTF_16:
        return "it is UTF-16: write the file as UTF-8"
    bare = _STRING.sub(b'""', bytes(content))
    if found := _NO_NUMBER.search(bare):
        return f"it has {found[0].decode()}, which is not JSON: write null (json.dumps(allow_nan=False) finds it)"
    return str(error)


def _doubt(url: str) -> int:
    """Returns how doubtful it is, by the name, that a file has lines: 0, 1 or 2. A `.json` may be one document."""
    found = _ENDINGS.search(url.lower())
    if found is None or found[1]:
        return 0
    return 1 if is_shard(url) else 2


_UTF_16 = frozenset([b"\xff\xfe", b"\xfe\xff"])
_NO_NUMBER = re.compile(rb"-?\b(?:NaN|Infinity)\b")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# An escaped half of a surrogate pair without the other half before or behind it.
_HALF_PAIR = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_VALUES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW = msgspec.json.Decoder(msgspec.Raw)
_TEXT = msgspec.json.Decoder(str)


def _begin(record: ObjectRecord, content: memoryview) -> int:
    """Returns where the first line begins: at byte 0, or behind a byte order mark.

    Raises ManifestError if the file is compressed or one JSON document.

    Args:
        record: the file.
        content: its first bytes.
    """
    if compression := find_compression_of_bytes(content):
        raise make_refusal(record, f"is compressed with {compression}; decompress it to plain lines")
    start = len(_MARK) if content[: len(_MARK)] == _MARK else 0
    line, end, rest = bytes(content[start:]).partition(b"\n")
    is_only = not end or (len(content) == record.size and not rest.strip())
    begins_list = line.lstrip()[:1] == b"[" and not _is_value(line)
    if begins_list or line.strip() == b"{" or (line.lstrip().startswith(b"[{") and is_only):
        raise make_refusal(
            record,
            "is one JSON document, not a JSON value on each line; write the objects of a list on lines of their own",
        )
    return start


def _is_value(line: bytes) -> bool:
    try:
        _RAW.decode(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_blank(content: memoryview, start: int, stop: int) -> bool:
    """Whether `content[start:stop]` has only white space."""
    return start >= stop or (content[start] in _BLANK and not bytes(content[start:stop]).strip(_BLANK))


def _line(record: ObjectRecord, start: int, stop: int) -> Span:
    if stop - start > LONGEST_LINE:
        raise _too_long(record, start)
    return Span(start, stop)


def _too_long(record: ObjectRecord, start: int) -> Exception:
    return make_damage_error(
        record, f"a line of more than {LONGEST_LINE} bytes", start, "write one JSON value on each line"
    )
