"""Runs one GET from a peer by libcurl, with limits on waiting and size.

`peers/client.py` sends every request to a peer with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

import pycurl

from streamer.peers.tls import use_tls
from streamer.store.curl.multi import Multi
from streamer.store.curl.request import CurlRequest, make_easy

_CONNECT_SECONDS = 1.0
# Time for connecting with TLS. The peer's kernel accepts a connection at once, but its process makes the handshake: on
# two cores with load 10 that took over a second for eight connections (2026-11-23).
_HANDSHAKE_SECONDS = 4.0
# A request without a byte for this long ends. The store has been asked as well long before.
_SILENT_SECONDS = 10
# At most this much of the body of an answer other than 200 is read.
_MOST_BYTES = 4096
_MOST_LINES = 64
_MOST_DIGITS = 19
# Bytes are reported when this many have arrived. Pieces have 16 KiB: a call for each would add a tenth to their cost.
_REPORT_BYTES = 64 * 1024
# Errors of libcurl for an answer that is not HTTP, or that a callback has refused.
_WRONG = (pycurl.E_UNSUPPORTED_PROTOCOL, pycurl.E_FTP_WEIRD_SERVER_REPLY, pycurl.E_WRITE_ERROR)
# Errors of libcurl for a certificate that is not of the authority, and for files of this engine that cannot be read.
_UNTRUSTED = (pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_CERTPROBLEM, pycurl.E_SSL_CACERT_BADFILE)
# Part of libcurl's message if the peer refuses the certificate of this engine.
_ALERT = " alert "

# Waits for memory for a body of that many bytes and returns it; raises WrongError for a length that cannot be.
MakeRoom = Callable[[int], Awaitable[memoryview]]
# Called with 0 for each line of an answer's head, and with the number of bytes of the body that arrived since the last
# call, at least `_REPORT_BYTES`; the rest at the end is not reported.
OnBytes = Callable[[int], None]


class Ending(Enum):
    """Says how a request ended that got no whole answer."""

    CUT_OFF = "cut off"  # there was no connection, or it broke
    WRONG = "wrong"  # the answer is not one that the protocol allows
    UNTRUSTED = "untrusted"  # one side does not accept the other's certificate


class WrongError(Exception):
    """Is raised by `MakeRoom` for a length that the answer cannot have."""


def _ignore(count: int) -> None:
    """Ignores the bytes of a request that nothing watches."""


class PeerTransfer(CurlRequest):
    """Sends requests to a peer, one at a time, over a connection that it keeps. On the engine's loop.

    Args:
        tls_folder: folder of certificate, key and authority (`tls`). "" means plain HTTP.

    Attributes:
        why: libcurl's reason for the last ending `UNTRUSTED`, or "" if there was none.
    """

    __slots__ = ("_body", "_length", "_on_bytes", "_refused", "_reported", "why")

    def __init__(self, tls_folder: str = "") -> None:
        easy = make_easy(_HANDSHAKE_SECONDS if tls_folder else _CONNECT_SECONDS, pycurl.PROTO_HTTP)
        # A proxy that the environment names is for the store, not for peers.
        easy.setopt(pycurl.PROXY, "")
        easy.setopt(pycurl.LOW_SPEED_LIMIT, 1)
        easy.setopt(pycurl.LOW_SPEED_TIME, _SILENT_SECONDS)
        if tls_folder:
            use_tls(easy, tls_folder)
        super().__init__(easy, self._take_line)
        self._on_bytes: OnBytes = _ignore
        self._length: asyncio.Future[int | None] | None = None
        self._body: memoryview | None = None
        self._reported = 0
        self._refused = 0
        self.why = ""

    def close(self) -> None:
        """Closes the handle of libcurl and its connection."""
        self.easy.close()

    @property
    def is_waiting_for_memory(self) -> bool:
        """Whether the answer has begun, and the transfer waits until `make_room` has memory for the body."""
        return self._length is not None and self._length.done() and self._body is None

    async def get(
        self, multi: Multi, url: str, lines: Sequence[str], make_room: MakeRoom, on_bytes: OnBytes = _ignore
    ) -> int | Ending:
        """Sends a GET; the body of an answer 200 is written to memory as it arrives. Cancelling ends the request.

        Args:
            multi: runs the transfer.
            url: url of the peer, such as "http://host:port/path".
            lines: lines of the request's head.
            make_room: called once with the length of the body of an answer 200, unless it is 0. The transfer pauses
                until it returns the memory.
            on_bytes: called as the answer arrives.

        Returns:
            The status, or how the request ended without a whole answer. After 200 the whole body is in the memory.
        """
        length = self._length = asyncio.get_running_loop().create_future()
        self.begin()
        self._reported = 0
        self._refused = 0
        self._on_bytes = on_bytes
        self.easy.setopt(pycurl.URL, url)
        self.easy.setopt(pycurl.HTTPHEADER, list(lines))
        ended = multi.start(self.easy)
        ended.add_done_callback(lambda _: None if length.done() else length.set_result(None))
        try:
            if (count := await length) is not None and not ended.done():
                self._body = await make_room(count)
                if not ended.done():
                    self.easy.pause(pycurl.PAUSE_CONT)
            await ended
            return self.read_head()[0] if count is None or self.received == count else Ending.CUT_OFF
        except pycurl.error as error:
            return self._explain_failure(*error.args)
        except WrongError:
            return Ending.WRONG
        finally:
            multi.remove(self.easy)
            if not ended.cancelled():
                ended.exception()  # of a request that was cancelled, which nothing else asks for
            self._length = self._body = None
            self._on_bytes = _ignore

    def _explain_failure(self, code: int, text: str) -> Ending:
        """Returns what an error of libcurl means; sets `why`. Raises the error of a callback, if it was one."""
        if self.failure is not None:
            raise self.failure
        if code in _WRONG:
            return Ending.WRONG
        if code not in _UNTRUSTED and _ALERT not in text:
            return Ending.CUT_OFF
        self.why = text
        return Ending.UNTRUSTED

    def _take_line(self, line: bytes) -> int | None:
        self._on_bytes(0)
        self.lines.append(line)
        return -1 if len(self.lines) > _MOST_LINES else None

    def take(self, piece: bytes) -> int | None:
        """Writes a piece of the body to memory; asks for the memory at the first piece (see `CurlRequest.take`)."""
        if self._body is None:
            return self._announce(piece)
        stop = self.received + len(piece)
        if stop > len(self._body):
            return -1
        self._body[self.received : stop] = piece
        self.received = stop
        if stop - self._reported >= _REPORT_BYTES:
            self._on_bytes(stop - self._reported)
            self._reported = stop
        return None

    def _announce(self, piece: bytes) -> int | None:
        """Passes the length of the body of an answer 200 to `get`, and pauses until there is memory for it.

        Drops the bodies of other answers. Returns what libcurl expects; -1 ends the transfer.
        """
        status, headers = self.read_head()
        if status != 200:
            self._refused += len(piece)
            return None if self._refused <= _MOST_BYTES else -1
        length = headers.get(b"content-length", b"")
        if self._length is None or self._length.done():  # it was just cancelled
            return -1
        if not length.isdigit() or len(length) > _MOST_DIGITS or not int(length):
            return -1
        self._length.set_result(int(length))
        return int(pycurl.WRITEFUNC_PAUSE)
