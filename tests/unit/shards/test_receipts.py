"""Receipts of shards: what is not one is none, whatever its bytes are."""

from __future__ import annotations

import msgspec
import pytest

from streamer.shards.receipts import Receipt, decode_receipt, encode_numbers, encode_receipt

GOOD = Receipt(
    shard=3, version="v", size=1024, blocks=encode_numbers([1, 1]), sums=encode_numbers([7, 8]), index_version="i"
)


def test_a_receipt_is_read_as_it_was_written() -> None:
    """A receipt is read as it was written."""
    assert decode_receipt(encode_receipt(GOOD)) == GOOD


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        encode_receipt(GOOD).replace(b'"v"', b'"\xff"'),
        encode_receipt(GOOD).replace(b"1024", b"-1"),
        msgspec.json.encode(msgspec.to_builtins(GOOD) | {"blocks": "AAAA"}),
        msgspec.json.encode(msgspec.to_builtins(GOOD) | {"sums": ""}),
        msgspec.json.encode(msgspec.to_builtins(GOOD) | {"rows": "AAAAAA=="}),
    ],
)
def test_what_is_no_receipt_is_none(content: bytes) -> None:
    """Bytes that are not UTF-8, deep JSON, and numbers that do not belong together are no receipt."""
    assert decode_receipt(content) is None
