"""The root.json of a manifest: its digest, its version, and which contradictions are refused."""

from __future__ import annotations

import msgspec
import pytest

from streamer.errors import ManifestCorruptError, ManifestError, ManifestVersionError
from streamer.manifest.layout import (
    ROOT_LIMIT_BYTES,
    ManifestContent,
    ManifestPart,
    TableRun,
    decode_root,
    encode_root,
    file_name,
)

PART = ManifestPart({table: TableRun(0, 1, "00" * 16) for table in ("objects", "chunks", "samples")})
CONTENT = ManifestContent("folder", True, "s3://b/", ["cat"], 8192, 100, [PART])
URLS = ["s3://b/"]
FILES = {file_name(table, 0): 500 for table in PART.tables}


def changed(**fields: object) -> bytes:
    root = msgspec.json.decode(encode_root(CONTENT, URLS, FILES))
    root.update(fields)
    return msgspec.json.encode(root)


def test_round_trip():
    """A root that is written is read again, and its digest is that of the content alone, not of urls or files."""
    root = decode_root(encode_root(CONTENT, URLS, FILES), "root.json")
    assert (root.content, root.file_bytes, root.digest) == (CONTENT, FILES, CONTENT.digest())
    other_files = dict.fromkeys(FILES, 501)
    assert decode_root(encode_root(CONTENT, ["s3://b"], other_files), "root.json").digest == root.digest


def test_every_field_of_the_content_is_in_the_digest():
    """A change of any field of the content changes the digest."""
    changes = [
        {"format": "webdataset"},
        {"base": "s3://c/"},
        {"classes": ["dog"]},
        {"chunk_bytes": 4096},
        {"total_bytes": 101},
        {"parts": [PART, PART]},
        {"whole_objects": False},
    ]
    digests = {msgspec.structs.replace(CONTENT, **change).digest() for change in changes}
    assert len(digests | {CONTENT.digest()}) == len(changes) + 1


def test_another_version_says_which():
    """A manifest of a later version raises ManifestVersionError with both versions."""
    with pytest.raises(
        ManifestVersionError, match=r"r\.json: manifest of version 99, streamer \S+ reads 1 to 4"
    ) as caught:
        decode_root(changed(version=99, content="of another form"), "r.json")
    assert (caught.value.details["found"], caught.value.details["expected"]) == (99, 4)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"magic": "other"}, "begins with 'other'"),
        ({"digest": "0" * 32}, "says digest 000"),
        ({"file_bytes": {}}, "list of files"),
        ({"file_bytes": {**FILES, "../../etc/passwd": 1}}, "list of files"),
        ({"file_bytes": dict.fromkeys(FILES, 0)}, "list of files"),
        ({"extra": 1}, "unknown field"),
        ({"content": []}, "not a manifest"),
    ],
)
def test_contradictions(fields, reason):
    """A root whose fields contradict each other raises ManifestCorruptError with the reason."""
    with pytest.raises(ManifestCorruptError, match=reason):
        decode_root(changed(**fields), "root.json")


def test_parts_must_follow_each_other():
    """A root whose parts do not follow each other raises ManifestCorruptError."""
    content = msgspec.structs.replace(CONTENT, parts=[PART, PART])
    files = {file_name(table, i): 500 for table in PART.tables for i in (0, 1)}
    with pytest.raises(ManifestCorruptError, match="do not follow each other"):
        decode_root(encode_root(content, URLS, files), "root.json")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b'{"magic": 1}', b"[" * 100_000])
def test_garbage(raw):
    """A root that is not JSON, or is nested too deep, raises ManifestCorruptError."""
    with pytest.raises(ManifestCorruptError, match=r"root\.json"):
        decode_root(raw, "root.json")


def test_root_has_a_limit():
    """A root beyond 16 MiB is neither written nor read, and the error advises a prefix or a glob."""
    with pytest.raises(ManifestError, match="name a prefix or a glob"):
        encode_root(CONTENT, ["s3://bucket/" + "x" * 1000] * 17_000, FILES)
    with pytest.raises(ManifestCorruptError, match="more than"):
        decode_root(b" " * (ROOT_LIMIT_BYTES + 1), "root.json")
