"""One request at a time over a handle of libcurl: what `Handle` (stores) and `PeerTransfer` share."""

from __future__ import annotations

from collections.abc import Callable

import pycurl

# Size of one read from a socket.
_BUFFER_BYTES = 512 * 1024


class CurlRequest:
    """Receives head and body of an answer. libcurl passes no exception on, so an error that ends a transfer is kept.

    Args:
        easy: the handle, with all options that stay the same.
        take_line: called with each line of a head instead of keeping it.

    Attributes:
        easy: the handle.
        lines: lines of all heads, those of proxies before that of the answer; empty with `take_line`.
        received: number of bytes of the body that have arrived; `take` counts them.
        failure: the error that `take` raised, or None.
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
        """Forgets the last answer, before another request."""
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
        """Receives a piece of the body; returns how many bytes it took, as libcurl expects, or None for all."""
        raise NotImplementedError

    def _write(self, piece: bytes) -> int | None:
        try:
            return self.take(piece)
        except BaseException as error:  # noqa: BLE001 - the owner of the request raises it again
            self.failure = error
            return -1


def make_easy(connect_seconds: float, protocols: int) -> pycurl.Curl:
    """Returns a handle for HTTP/1.1 that keeps its connection; only connecting has a timeout.

    Args:
        connect_seconds: the timeout of connecting.
        protocols: the protocols that are allowed, as bits of `pycurl.PROTO_*`.
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
