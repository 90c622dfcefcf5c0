"""Asks AWS for the region of a bucket, for clients that do not show the headers of an answer.

Source: AWS, "HeadBucket" (Amazon S3 API Reference): the region is in the answer, whatever its status is.
"""

from __future__ import annotations

import ssl
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

_HEADER = "x-amz-bucket-region"
_SECONDS = 5.0


class _NoRedirects(HTTPRedirectHandler):
    """A redirect is the answer: it names the region."""

    def redirect_request(self, *_: object) -> None:
        """Makes no request."""


def asked(base: str, ca_file: str | None) -> str:
    """Returns the region in the answer to an unsigned HEAD of the bucket; "" if it names none, or there is no answer.

    Args:
        base: url of the bucket at the host of any region.
        ca_file: PEM file to trust besides those of the system.
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    opener = build_opener(HTTPSHandler(context=context), _NoRedirects)
    try:
        with opener.open(Request(base, method="HEAD"), timeout=_SECONDS) as answer:
            return str(answer.headers.get(_HEADER, ""))
    except HTTPError as refusal:
        with refusal:
            return str(refusal.headers.get(_HEADER, ""))
    except OSError:  # the request that follows meets the same, and is the one that reports and waits
        return ""
