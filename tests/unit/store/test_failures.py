"""Errors made from the answers of stores."""

from __future__ import annotations

import pytest

from streamer.errors import AccessDeniedError, ConfigError, StoreError, ThrottledError
from streamer.store.failures import StoreAnswer, error_of, redact, short_read, translate_errors


def test_unknown_status_is_a_store_error() -> None:
    """A status without a type of its own becomes a StoreError with its number and code."""
    error = error_of("s3://b/k", StoreAnswer(599, "Odd"))
    assert type(error) is StoreError
    assert (error.details["status"], error.details["code"]) == (599, "Odd")
    assert "599 Odd" in str(error)


def test_expired_credentials_are_access_denied_whatever_the_status() -> None:
    """Expired credentials are an AccessDeniedError whatever the status, since S3 answers 400 to an expired token."""
    error = error_of("s3://b/k", StoreAnswer(400, "ExpiredToken"))
    assert isinstance(error, AccessDeniedError)
    assert "renew" in str(error)


def test_message_hides_signed_urls() -> None:
    """The error about a signed url shows the url without its query."""
    assert "hush" not in str(error_of("https://h/k?X-Amz-Signature=hush", StoreAnswer(403)))


def test_short_read_has_the_numbers() -> None:
    """The error about a short read has the range that was asked for and the number of bytes received."""
    error = short_read("s3://b/k", 10, 110, 30)
    assert "[10, 110)" in str(error)
    assert (error.details["start"], error.details["stop"], error.details["received"]) == (10, 110, 30)


@pytest.mark.parametrize(
    "text",
    ["GET http://h/k?sig=hush&x=1", "X-Amz-Security-Token: hush", 'password="hush"', "AWS_SECRET=hush"],
)
def test_secrets_are_struck_out_of_causes(text: str) -> None:
    """Secrets in the text of another library's error are removed, and its type stays in the text."""
    assert "hush" not in str(redact(ValueError(text)))
    assert "ValueError" in str(redact(ValueError(text)))


def test_harmless_causes_stay_themselves() -> None:
    """An error without secrets is kept as the cause unchanged, with its type and traceback."""
    error = OSError("no route")
    assert redact(error) is error


def test_translating_leaves_ours_alone() -> None:
    """Errors of streamer pass through the translation; other errors are translated and become the cause."""
    with pytest.raises(ConfigError, match="mine"), translate_errors(_mapper, "s3://b/k"):
        raise ConfigError("mine")
    with pytest.raises(ThrottledError) as caught, translate_errors(_mapper, "s3://b/k"):
        raise OSError("theirs")
    assert isinstance(caught.value.__cause__, OSError)


def _mapper(url: str, error: Exception, target: object) -> ThrottledError:
    """Stands for the part of a store that translates its library's errors."""
    return ThrottledError(f"{url}: {error}")
