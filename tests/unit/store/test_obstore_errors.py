"""Errors made from obstore's texts where the store gave no answer."""

from __future__ import annotations

import re

import pytest
from obstore.exceptions import GenericError, UnauthenticatedError

from streamer.errors import AccessDeniedError, StoreError
from streamer.store.obstore_clients import map_error

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
    """A refused certificate is told from a missing connection by obstore's debug text, and the error has advice."""
    error = map_error("s3://b/x", GenericError(_TEXT.format(inner)), None)
    assert re.search(expected, str(error))


# As obstore 0.12.1 writes them (2026-11-24), with the clouds' own addresses.
_ROLE = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms - "
_STS = "Generic S3 error: Error performing POST REDACTED in 1ms - "
_GOOGLE = "Generic GCS error: Error performing POST https://oauth2.googleapis.com/token in 1ms - "
_MANAGED = (
    "Generic MicrosoftAzure error: Error performing token request: Error performing GET "
    "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2019-08-01 in 1ms - "
)
_STATUS = "Server returned non-2xx status code: {} Whatever: <Error/>"


@pytest.mark.parametrize(
    ("url", "text", "kind", "said"),
    [
        ("s3://b/x", _ROLE + _STATUS.format(503), StoreError, "obtained now (the metadata server answered 503)"),
        ("s3://b/x", _ROLE + _STATUS.format(404), AccessDeniedError, "no credentials were found"),
        ("s3://b/x", _ROLE + "HTTP error: error sending request", AccessDeniedError, "no metadata server answers"),
        ("az://c/x", _MANAGED + _STATUS.format(404), StoreError, "the metadata server answered 404"),
        ("az://c/x", _MANAGED + _STATUS.format(410), StoreError, "the metadata server answered 410"),
        (
            "s3://b/x",
            _STS + _STATUS.format(403),
            AccessDeniedError,
            "credentials refuses: sts answered 403",
        ),
        ("s3://b/x", _STS + "HTTP error: error sending request", StoreError, "sts answered nothing"),
        ("gs://b/x", _GOOGLE + _STATUS.format(400), AccessDeniedError, "oauth2.googleapis.com answered 400"),
        ("gs://b/x", _GOOGLE + _STATUS.format(503), StoreError, "oauth2.googleapis.com answered 503"),
    ],
)
def test_an_issuer_is_not_the_store(url: str, text: str, kind: type[StoreError], said: str) -> None:
    """An issuer of credentials that fails is named as such in obstore's error; one that is down may be tried again."""
    error = map_error(url, GenericError(text), None)
    assert type(error) is kind
    assert said in str(error)
    assert "the store answered" not in str(error)


def test_no_credentials_is_no_answer() -> None:
    """A refusal of obstore itself for want of credentials is an AccessDeniedError without a status of the store."""
    error = map_error("s3://b/x", UnauthenticatedError("The operation lacked valid authentication credentials"), None)
    assert isinstance(error, AccessDeniedError)
    assert error.details["status"] is None
