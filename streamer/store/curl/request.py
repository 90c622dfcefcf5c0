"""Receives the answers to requests over one handle of libcurl, one at a time.

Requests to stores (`Handle` in `store/curl/handle.py`) and to peers (`PeerTransfer` in `peers/transfer.py`) are made of
it.
"""

from __future__ import annotations

from collections.abc import Callable

import pycurl

# Size of one read from a socket.
_BUFFER_BYTES = 512 * 1024


class CurlRequest:
    """Receives head and body of an answer. A subclass says what becomes of the body (`take`).

    libcurl passes no exception on, so an error that `take` raises ends the transfer and is kept in `failure`.

    Args:
        easy: the handle, with all options that stay the same.
        take_line: called with each line of a head. None means that the lines are kept in `lines`.

    Attributes:
        easy: the handle.
        lines: lines of all heads, those of proxies before that of the answer.
        received: number of bytes of the body that have arrived. `take` counts them.
        failure: the error that ended the transfer, or None.
    """

    __slots__ = ("easy", "failure", "lines", "received")

    def __init__(self, easy: pycurl.Curl, take_line: Callable[[bytes], int | None] | None = None) -> None:
        self.easy = easy
        self.lines: list[bytes] = []
        self.received = 0
        self.failure: BaseException | None = None
        easy.setopt(pycurl.HEADERFUNCTION, take_line or self.lines.append)
        easy.setopt(pycurl.WRITEFUNCTION, self._write)

    def begin(self) -> None:
        """Forgets the last answer. Called before the next request."""
        self.lines.clear()
        self.received = 0
        self.failure = None

    def read_head(self) -> tuple[int, dict[bytes, bytes]]:
        """Returns status and headers (names in lower case) of the last head; the status is 0 if there is none."""
        status = 0
        headers: dict[bytes, bytes] = {}
        for line in self.lines:
            name, colon, value = line.partition(b":")
            if line.startswith(b"HTTP/"):
                status = int(line[9:12]) if line[9:12].isdigit() else 0
                headers = {}
            elif colon:
                headers[name.lower()] = value.strip()
        return status, headers

    def take(self, piece: bytes) -> int | None:
        """Receives a piece of the body. Returns None if it took the piece; other values mean what they do in libcurl.

        An error that this raises ends the transfer.
        """
        raise NotImplementedError

    def _write(self, piece: bytes) -> int | None:
        try:
            return self.take(piece)
        except BaseException as error:  # noqa: BLE001 - the owner of the request raises it again
            self.failure = error
            return -1


def make_easy(connect_seconds: float, protocols: int) -> pycurl.Curl:
    """Returns a new handle for HTTP/1.1 that keeps its connection; only connecting has a timeout.

    Args:
        connect_seconds: timeout of connecting.
        protocols: protocols that are allowed, as bits of `pycurl.PROTO_*`.
    """
    easy = pycurl.Curl()
    easy.setopt(pycurl.NOSIGNAL, 1)
    easy.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    easy.setopt(pycurl.PROTOCOLS, protocols)
    easy.setopt(pycurl.BUFFERSIZE, _BUFFER_BYTES)
    easy.setopt(pycurl.TCP_KEEPALIVE, 1)
    easy.setopt(pycurl.CONNECTTIMEOUT_MS, int(connect_seconds * 1000))
    easy.setopt(pycurl.USERAGENT, "streamer")
    easy.setopt(pycurl.PATH_AS_IS, 1)
    return easy
