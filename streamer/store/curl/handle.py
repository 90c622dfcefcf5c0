"""Makes a request to a store by libcurl, checks which bytes its answer may deliver, and explains its failures.

`store/curl/store.py` uses it: `Handle` for ranges of objects, `Whole` for everything else. `Multi` runs the transfers
(`store/curl/multi.py`).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import BinaryIO
from urllib.parse import quote

import pycurl

from streamer.errors import ConfigError, StoreError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, guard, versions
from streamer.store.addresses.hosts import host_of
from streamer.store.addresses.urls import shown
from streamer.store.base import Get, Take
from streamer.store.curl.access import Access
from streamer.store.curl.request import CurlRequest, make_easy

# Bytes of an answer other than the object that are searched for the store's error code.
_ERROR_BODY_BYTES = 64 * 1024
# Most bytes of an answer that is kept: a page of 1,000 keys of 1,024 escaped characters has 4 MB.
_MOST_BYTES = 16 << 20
# Characters that stay in the address of a redirect; others are escaped.
_ASCII = bytes(range(0x21, 0x7F)).decode()
# An upload that sends nothing for this long is given up.
_SILENT_UPLOAD_SECONDS = 300
# The object of a handle without a request.
_NOTHING = ObjectRecord("", 0, "")
# Endings of the names of files that are compressed. Their servers may name the same compression as Content-Encoding.
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".br", ".z", ".deflate")
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class Handle(CurlRequest):
    """Reads ranges of objects of one store, one after the other, over one handle of libcurl.

    A read calls `bind`, then for each address `prepare`, `Multi.perform` and `finish`, and `unbind` at last.

    Args:
        access: settings of all requests to the store.
        addresses: lines of CURLOPT_RESOLVE, which say where connections go. Empty if libcurl resolves the name.
    """

    __slots__ = (
        "_answer",
        "_fresh",
        "_most",
        "_range",
        "_redirects",
        "_redirects_left",
        "_sink",
        "_tag",
        "_take",
        "_target",
    )

    def __init__(self, access: Access, addresses: Sequence[str] = ()) -> None:
        super().__init__(make_easy(access.connect_seconds, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS))
        self._target = _NOTHING
        self._range = (0, 0)
        self._tag: str | None = None
        self._take: Take | None = None
        self._sink: Take | None = None
        self._answer = b""
        self._most = 0
        self._redirects = access.redirects
        self._redirects_left = 0
        self._fresh = False
        if access.proxy is not None:
            self.easy.setopt(pycurl.PROXY, access.proxy)
        if access.bundle is not None:
            self.easy.setopt(pycurl.CAINFO, access.bundle)
        if access.folder is not None:
            self.easy.setopt(pycurl.CAPATH, access.folder)
        if addresses:
            self.easy.setopt(pycurl.RESOLVE, list(addresses))
        if access.refuse_local:
            self.easy.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)

    def bind(self, asked: Get, take: Take) -> None:
        """Sets what is read, and which function takes its bytes, until `unbind`; sends nothing."""
        target = asked.target
        self._target = target
        self._range = (asked.start, asked.stop)
        self._take = take
        self._redirects_left = self._redirects.max_redirects
        tag = versions.if_match(target.version)
        # A tag with a line break would begin another header: it is not sent, but the answer is compared with it.
        self._tag = tag if tag is not None and tag.isascii() and tag.isprintable() else None

    def unbind(self) -> None:
        """Drops all state of the read, so that the handle can be used for another one."""
        self._target = _NOTHING
        self._take = None
        self.begin()

    def begin(self) -> None:
        """Forgets the last answer (`CurlRequest.begin`). What `bind` has set stays."""
        super().begin()
        self._sink = None
        self._answer = b""

    def prepare(self, address: str, headers: Sequence[str], *, fresh: bool) -> None:
        """Sets the options of the transfer that differ from those of the last one.

        Args:
            address: escaped url of the request.
            headers: lines of its head besides Range and If-Match.
            fresh: whether to use a new connection.
        """
        easy = self.easy
        (start, stop) = self._range
        lines = [f"Range: bytes={start}-{stop - 1}", *headers]
        if self._tag is not None:
            lines.append(f"If-Match: {self._tag}")
        easy.setopt(pycurl.URL, address)
        easy.setopt(pycurl.HTTPHEADER, lines)
        if fresh is not self._fresh:
            easy.setopt(pycurl.FRESH_CONNECT, int(fresh))
            self._fresh = fresh

    def finish(self) -> str:
        """Checks a complete answer.

        Returns:
            The address to which the store redirects, or "" if the whole range was received.

        Raises:
            ShortReadError: the body is shorter than the range.
            StoreError: the answer is an error of the store, or a redirect that is not followed.
        """
        if self._sink is None:  # an answer without a body
            self._sink = self._choose_sink()
        if self._sink == self._keep_answer:
            return self._follow_redirect()
        start, stop = self._range
        if self.received != stop - start:
            raise failures.short_read(self._target.url, start, stop, self.received)
        return ""

    def _follow_redirect(self) -> str:
        """Returns the address that a redirect names, and forgets the answer.

        Raises:
            StoreError: the answer is an error of the store, or a redirect that is not followed.
        """
        found = self.easy.getinfo_raw(pycurl.REDIRECT_URL)
        if not found:
            raise self._read_refusal()
        address = quote(found, safe=_ASCII)
        if not self._redirects.follows(address):
            status, headers = self.read_head()
            if b"x-amz-bucket-region" in headers:
                raise self._read_refusal()
            raise failures.make_redirect_error(self._target.url, status, host_of(address))
        if not self._redirects_left:
            raise failures.unreachable(self._target.url, "it redirects too often")
        self._redirects_left -= 1
        self.begin()
        return address

    def explain_failure(self, error: pycurl.error) -> BaseException:
        """Returns the error of a transfer that failed: one that was raised here meanwhile, or what `error` means."""
        if self.failure is not None:
            return self.failure
        url = self._target.url
        (start, stop) = self._range
        code = error.args[0]
        text = str(error.args[-1])
        if code in (pycurl.E_PARTIAL_FILE, pycurl.E_RECV_ERROR, pycurl.E_GOT_NOTHING) and self._sink == self._take:
            return failures.short_read(url, start, stop, self.received)
        if code == pycurl.E_URL_MALFORMAT:
            return ConfigError(f"{shown(url)}: libcurl cannot take this url", field="url")
        if code == pycurl.E_PEER_FAILED_VERIFICATION and ("expired" in text or "match" in text):
            return failures.unreachable(url, failures.INVALID)
        return failures.unreachable(url, _REASONS.get(code, f"the request failed (libcurl {code})"))

    def _open_socket(self, _purpose: int, address: tuple[int, int, int, tuple[str, int]]) -> socket.socket | int:
        """Opens a socket for libcurl; refuses addresses of this machine, and keeps the error in `failure`."""
        family, kind, protocol, where = address
        if guard.is_own(where[0]):
            self.failure = guard.refusal(self._target.url, f"its address is {where[0]}")
            return int(pycurl.SOCKET_BAD)
        return _Socket(family, kind, protocol)

    def take(self, piece: bytes) -> None:
        """Passes a piece of the body on (`CurlRequest.take`); by the first piece chooses to whom.

        Raises:
            StoreError: as `_choose_sink`, or the body is longer than the range.
        """
        sink = self._sink
        if sink is None:
            sink = self._sink = self._choose_sink()
        self.received += len(piece)
        if self.received > self._most:
            if self._sink == self._keep_answer:
                raise self._read_refusal()
            raise failures.short_read(self._target.url, *self._range, self.received)
        sink(piece)

    def _choose_sink(self) -> Take:
        """Returns the function that takes the body, by the answer's head: that of the reader, or `_keep_answer`.

        The second is for answers that are not the object: errors and redirects.

        Raises:
            ObjectChangedError: the object has another version or size.
            StoreError: the answer is another range, or a web page instead of the object.
        """
        assert self._take is not None, "bound"
        target = self._target
        (start, stop) = self._range
        self._most = stop - start
        if self._is_expected_range():
            return self._take
        status, headers = self.read_head()
        is_page = headers.get(b"content-type", b"").lower().startswith(b"text/html")
        was_redirected = self._redirects_left < self._redirects.max_redirects
        if is_page and was_redirected and status in (200, 206) and not target.url.lower().endswith((".html", ".htm")):
            raise failures.page_instead(target.url)
        if status == 206:
            _check_range(target, (start, stop), headers.get(b"content-range", b"").decode("latin-1"))
        elif status != 200:
            self._most = _ERROR_BODY_BYTES
            return self._keep_answer
        elif (start, stop) != (0, target.size):
            raise StoreError(
                f"{shown(target.url)}: the server does not serve ranges", url=shown(target.url), status=200
            )
        versions.require(target, version_of(target.size, headers))
        return self._take

    def _is_expected_range(self) -> bool:
        """Whether the head is that of a right answer as most servers write it. To parse others takes 4 us more."""
        lines = self.lines
        tag = self._tag
        (start, stop) = self._range
        return (
            tag is not None
            and lines[0].startswith(b"HTTP/1.1 206")
            and f"ETag: {tag}\r\n".encode() in lines
            and f"Content-Range: bytes {start}-{stop - 1}/{self._target.size}\r\n".encode() in lines
        )

    def _keep_answer(self, piece: bytes | memoryview) -> None:
        """Adds a piece to the answer that is kept."""
        self._answer += piece

    def _read_refusal(self) -> StoreError:
        """Returns the error that an answer tells by its status and its body."""
        status, headers = self.read_head()
        if status == 412:
            return versions.make_change_error(self._target, None)
        body = self._answer.decode("utf-8", "replace")
        region = headers.get(b"x-amz-bucket-region", b"").decode("latin-1") or failures.word_of(body, "Region")
        answer = failures.StoreAnswer(
            status=status,
            code=failures.word_of(body, "Code"),
            retry_after_seconds=failures.parse_retry_after(headers.get(b"retry-after", b"").decode("latin-1")),
            message=failures.message_of(body),
            region=region,
        )
        return failures.error_of(self._target.url, answer)


class Whole(Handle):
    """Makes one request whose answer is kept: a HEAD, a page of a list, the first byte, an upload, or its removal.

    The caller calls `prepare`, `Multi.perform` and `finish` for each address, and closes `easy`.

    Args:
        access: settings of all requests to the store.
        url: url that errors name.
        method: HTTP method.
        first_byte: whether only the first byte is asked for.
        content: content of a PUT, a file that can be read again after a redirect. None means no content.

    Attributes:
        headers: headers of the answer, names in lower case.
        method: HTTP method.
    """

    __slots__ = ("_content", "_first_byte", "headers", "method")

    def __init__(
        self, access: Access, url: str, method: str, *, first_byte: bool = False, content: BinaryIO | None = None
    ) -> None:
        super().__init__(access)
        self.method = method
        self._first_byte = first_byte
        self._content = content
        self.headers: dict[bytes, bytes] = {}
        self.bind(Get(ObjectRecord(url, 0, ""), 0, 0), self._keep_answer)
        if content is not None:
            self.easy.setopt(pycurl.UPLOAD, 1)
            self.easy.setopt(pycurl.READFUNCTION, content.read)
            self.easy.setopt(pycurl.SEEKFUNCTION, self._rewind)
            self.easy.setopt(pycurl.INFILESIZE_LARGE, content.seek(0, os.SEEK_END))
            self.easy.setopt(pycurl.LOW_SPEED_LIMIT, 1)
            self.easy.setopt(pycurl.LOW_SPEED_TIME, _SILENT_UPLOAD_SECONDS)
        elif method == "HEAD":
            self.easy.setopt(pycurl.NOBODY, 1)
        elif method != "GET":
            self.easy.setopt(pycurl.CUSTOMREQUEST, method)

    @property
    def body(self) -> bytes:
        """Body of the answer, at most 16 MiB."""
        return self._answer

    def record(self, url: str) -> ObjectRecord:
        """Returns the object that the answer to a HEAD describes."""
        size = int(self.headers.get(b"content-length", b"0"))
        return ObjectRecord(url, size, version_of(size, self.headers))

    def web_record(self, url: str) -> ObjectRecord:
        """Returns the object that a web server's answer to a HEAD, or to a GET of the first byte, describes.

        Raises:
            StoreError: the answer tells no length, or the object is sent compressed.
        """
        ranged = _RANGE.fullmatch(self.headers.get(b"content-range", b"").decode("latin-1"))
        length = self.headers.get(b"content-length", b"")
        encoding = self.headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
        # Many servers name as Content-Encoding the compression that the file itself has.
        if encoding not in ("", "identity") and not shown(url).lower().endswith(_COMPRESSED):
            raise failures.make_encoding_error(url, encoding)
        if ranged is None and not (length.isdigit() and len(length) < 20):
            raise failures.unreachable(url, failures.NO_LENGTH)
        size = int(length) if ranged is None else int(ranged[3])
        # A version id of S3 is dropped, because listings of web servers and earlier manifests have none.
        headers = {name: value for name, value in self.headers.items() if name != b"x-amz-version-id"}
        return ObjectRecord(url, size, version_of(size, headers))

    def prepare(self, address: str, headers: Sequence[str], *, fresh: bool = False) -> None:
        """Sets address and lines of the head (see `Handle.prepare`). `fresh` is ignored, because the handle is new."""
        self.easy.setopt(pycurl.URL, address)
        if self._content is not None:
            self._content.seek(0)
            headers = [*headers, "Expect:"]  # libcurl would wait a second for an answer before the bytes
        # An empty list would leave those of the last request.
        self.easy.unsetopt(pycurl.HTTPHEADER)
        self.easy.setopt(pycurl.HTTPHEADER, [*headers, "Range: bytes=0-0"] if self._first_byte else list(headers))

    def finish(self) -> str:
        """Checks a complete answer, and returns as `Handle.finish`: "" for a good status, whatever the body is.

        An upload follows only redirects with 307 or 308. After others, which are older, clients send a GET.

        Raises:
            StoreError: the answer is an error of the store, or a redirect that is not followed.
        """
        status, self.headers = self.read_head()
        if status in {200, 201, 204, 206}:
            return ""
        if self._content is not None and status in {301, 302, 303}:
            onward = self.easy.getinfo_raw(pycurl.REDIRECT_URL) or b""
            raise failures.make_upload_error(self._target.url, status, host_of(onward.decode("latin-1")))
        return self._follow_redirect()

    def _rewind(self, offset: int, origin: int) -> int:
        """Moves to another byte of the content; called by libcurl, which sends it again over another connection."""
        assert self._content is not None, "set with the content"
        self._content.seek(offset, origin)
        return int(pycurl.SEEKFUNC_OK)

    def _choose_sink(self) -> Take:
        self._most = _MOST_BYTES
        if self._first_byte and self.read_head()[0] == 200:  # the whole object follows
            raise failures.make_ranges_error(self._target.url)
        return self._keep_answer


class _Socket(socket.socket):
    """A socket that closes without a ResourceWarning when its object is dropped: libcurl has a copy of it."""

    def __del__(self) -> None:
        self.close()


def _check_range(target: ObjectRecord, asked: tuple[int, int], header: str) -> None:
    """Checks by Content-Range that the answer is the range that was asked for, of an object of the known size.

    This also finds changes if the server ignores If-Match.

    Raises:
        ObjectChangedError: the object has another size.
        ShortReadError: the answer is another range.
    """
    start, stop = asked
    if header == f"bytes {start}-{stop - 1}/{target.size}":
        return
    found = _RANGE.fullmatch(header)
    if found is not None and int(found[3]) != target.size:
        raise versions.make_change_error(target, f"an object of {found[3]} bytes")
    raise failures.wrong_range(target.url, start, stop, header)


def version_of(size: int, headers: dict[bytes, bytes]) -> str:
    """Returns the version (see `store/versions.py`) of an object, by the headers of an answer and its size in bytes."""
    tag, version, moment = (
        headers.get(name, b"").decode("latin-1") for name in (b"etag", b"x-amz-version-id", b"last-modified")
    )
    return versions.choose_version(tag, version, size, None if tag or version else _moment(moment))


def _moment(text: str) -> datetime | None:
    """Returns the time of a Last-Modified, in the form of HTTP or of ISO 8601; None if it has neither form."""
    # The import takes 2 ms, and is seldom needed.
    from email.utils import parsedate_to_datetime

    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, OverflowError):
            moment = parse(text)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


# Words for libcurl's errors in messages.
_REASONS = {
    pycurl.E_COULDNT_RESOLVE_HOST: failures.UNRESOLVED,
    pycurl.E_COULDNT_RESOLVE_PROXY: "the name of the proxy cannot be resolved",
    pycurl.E_COULDNT_CONNECT: failures.NO_CONNECTION,
    pycurl.E_OPERATION_TIMEDOUT: failures.LATE_CONNECTION,
    pycurl.E_PEER_FAILED_VERIFICATION: failures.UNTRUSTED,
    pycurl.E_SSL_CONNECT_ERROR: "no TLS connection",
    pycurl.E_SEND_ERROR: "the connection broke",
    pycurl.E_RECV_ERROR: "the connection broke",
    pycurl.E_GOT_NOTHING: "the connection broke",
    pycurl.E_PARTIAL_FILE: "the connection broke",
    pycurl.E_UNSUPPORTED_PROTOCOL: "what answers does not speak HTTP",
    pycurl.E_FTP_WEIRD_SERVER_REPLY: "what answers does not speak HTTP",  # 8, of any protocol
    pycurl.E_SSL_CACERT_BADFILE: "the file of trusted certificates cannot be read (SSL_CERT_FILE)",
}
