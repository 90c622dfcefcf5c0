"""Answers that are no listing of S3 are refused before they take time or memory."""

from __future__ import annotations

import time

import pytest

from streamer.errors import ConfigError
from streamer.store.curl.listing import parse_page

BOMB = b"<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'>%s]><ListBucketResult>&j;</ListBucketResult>" % b"".join(
    b"<!ENTITY %c '%s'>" % (letter, b"&%c;" % (letter - 1) * 10) for letter in b"bcdefghij"
)


@pytest.mark.parametrize(
    "body",
    [
        BOMB,
        b"<ListBucketResult>" + b"<a/>" * 4_000_000 + b"</ListBucketResult>",
        b"<ListBucketResult>" + b"<a>" * 2_000_000 + b"</a>" * 2_000_000 + b"</ListBucketResult>",
        "<!DOCTYPE x><ListBucketResult></ListBucketResult>".encode("utf-16"),
        b"<ListBucketResult><Contents><Key>a</Key><Size>-1</Size><ETag>e</ETag></Contents></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>a</Key><Size>9007199254740992</Size><ETag>e</ETag></Contents></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>a</Key><Size>" + b"9" * 5000 + b"</Size></Contents></ListBucketResult>",
    ],
    ids=["entities", "tags", "deep", "utf-16", "negative", "2^53", "5000 digits"],
)
def test_what_is_no_list_is_refused(body: bytes) -> None:
    """An answer that is no listing of S3 is refused within 0.2 s, because pages are parsed on the event loop."""
    begun = time.process_time()
    with pytest.raises(ConfigError, match="is not a listing of S3"):
        parse_page("s3://bucket", body)
    assert time.process_time() - begun < 0.2
