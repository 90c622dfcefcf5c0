"""What obstore's texts become where the server gave no answer."""

from __future__ import annotations

import re

import pytest
from obstore.exceptions import GenericError

from streamer.store.obstore_errors import mapped

# As obstore 0.12.1 writes it against a server whose CA is unknown (2026-11-20), shortened.
_TEXT = """Generic S3 error: Error performing GET https://127.0.0.1:4093/b/x in 4ms - HTTP error: error sending request

Debug source:
Generic {{ store: "S3", source: RetryError(RetryErrorImpl {{ inner: Http(HttpError {{ kind: Connect,
    source: Custom {{ kind: InvalidData, error: {} }} }}) }}) }}"""


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("InvalidCertificate(\n UnknownIssuer,\n)", "not trusted .a private CA: .*verify"),
        ("InvalidCertificate(\n Other(OtherError(CaUsedAsEndEntity)),\n)", "not trusted .a private CA: .*verify"),
        ("InvalidCertificate(\n Expired,\n)", "not valid .expired"),
        ("Os { code: 111 }", "no connection"),
    ],
)
def test_a_refused_certificate_is_not_just_no_connection(inner: str, expected: str) -> None:
    """The kind of refusal stands in the debug text only; each names its remedy."""
    error = mapped("s3://b/x", GenericError(_TEXT.format(inner)), None)
    assert re.search(expected, str(error))
