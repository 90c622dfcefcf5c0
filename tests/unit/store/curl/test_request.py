"""What requests to stores and to peers have in common."""

from __future__ import annotations

import pycurl
import pytest

from streamer.store.curl.request import CurlRequest, make_easy


class Refusing(CurlRequest):
    """Stands for a receiver that fails at the first byte."""

    def take(self, piece: bytes) -> int | None:
        raise ValueError(piece)


def make_request() -> Refusing:
    """Makes a request whose receiver fails."""
    return Refusing(make_easy(1.0, pycurl.PROTO_HTTP))


@pytest.mark.parametrize(
    ("lines", "status", "headers"),
    [
        ([], 0, {}),
        ([b"HTTP/1.1 200 OK: yes\r\n", b"ETag: \"a:b\"\r\n", b"\r\n"], 200, {b"etag": b'"a:b"'}),
        ([b"HTTP/1.1 302 Found\r\n", b"Location: x\r\n", b"\r\n", b"HTTP/1.0 206\r\n", b"a:1\r\n"], 206, {b"a": b"1"}),
        ([b"HTTP/1.1 \r\n", b"no header\r\n"], 0, {}),
    ],
)  # fmt: skip
def test_the_head_is_that_of_the_last_answer(lines: list[bytes], status: int, headers: dict[bytes, bytes]) -> None:
    """The header of a response is that of the last answer; those of proxies and redirects before it are dropped."""
    request = make_request()
    request.lines += lines
    assert request.read_head() == (status, headers)
    request.begin()
    assert request.read_head() == (0, {})


def test_an_error_of_a_receiver_ends_the_transfer_and_is_kept() -> None:
    """An error of a receiver ends the transfer and is kept; libcurl would print it and report a failed write."""
    request = make_request()
    assert request._write(b"x") == -1
    assert isinstance(request.failure, ValueError)
    request.begin()
    assert request.failure is None
