"""Answers that are kept whole: heads, and pages of listings."""

from __future__ import annotations

from collections.abc import Sequence

import pycurl

from streamer.manifest.model import ObjectRecord
from streamer.store.base import Take
from streamer.store.curl.access import Access
from streamer.store.curl.handle import Handle, version_of

# A page of 1,000 keys of 1,024 escaped characters has 4 MB.
_MOST_BYTES = 16 << 20


class Whole(Handle):
    """One request whose answer is kept.

    Args:
        access: access to the root.
        url: url for messages.
        method: GET, HEAD or DELETE.
    """

    __slots__ = ("headers", "method")

    def __init__(self, access: Access, url: str, method: str) -> None:
        super().__init__(access)
        self.method = method
        self.headers: dict[bytes, bytes] = {}
        self.bind(ObjectRecord(url, 0, ""), (0, 0), self._keep_answer)
        if method == "HEAD":
            self.easy.setopt(pycurl.NOBODY, 1)
        elif method != "GET":
            self.easy.setopt(pycurl.CUSTOMREQUEST, method)

    @property
    def body(self) -> bytes:
        """The body of the answer."""
        return self._answer

    def record(self, url: str) -> ObjectRecord:
        """The object that the answer to a HEAD describes."""
        size = int(self.headers.get(b"content-length", b"0"))
        return ObjectRecord(url, size, version_of(size, self.headers))

    def prepare(self, address: str, headers: Sequence[str], *, fresh: bool = False) -> None:
        """Sets address and headers."""
        self.easy.setopt(pycurl.URL, address)
        self.easy.setopt(pycurl.HTTPHEADER, list(headers))

    def finish(self) -> str:
        """See Handle.finish; any body is accepted."""
        status, self.headers = self._head()
        return "" if status in {200, 204} else self._redirected()

    def _begin(self) -> Take:
        self._most = _MOST_BYTES
        return self._keep_answer
