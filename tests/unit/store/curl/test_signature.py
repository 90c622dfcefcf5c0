"""Signature Version 4 against the published example; the contract of stores compares with boto and a server."""

from __future__ import annotations

from streamer.store.credentials.boto_keys import AwsKeys
from streamer.store.curl.access import Signer

KEYS = AwsKeys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
# 24 May 2013, midnight UTC.
MOMENT = 1_369_353_600.0
ADDRESS = "https://examplebucket.s3.amazonaws.com/test.txt"


def _signer(*moments: float) -> Signer:
    """Makes a signer whose clock gives these moments."""
    left = list(moments)
    base = "https://examplebucket.s3.amazonaws.com/"
    return Signer(base, "us-east-1", ("Range: bytes=0-9",), lambda: left.pop(0))


def test_the_example_of_aws() -> None:
    """A request is signed as in AWS's "Signature Calculations for the Authorization Header", example GET Object."""
    assert _signer(MOMENT).sign(ADDRESS, KEYS) == [
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        "Host: examplebucket.s3.amazonaws.com",
        "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "x-amz-date: 20130524T000000Z",
        "Range: bytes=0-9",
    ]


def test_what_is_kept_is_for_this_second_and_these_keys() -> None:
    """A signature is reused within a second for the same keys; a later second or other keys sign anew."""
    later, token = MOMENT + 86_400.0, AwsKeys(KEYS.key, KEYS.secret, "token")
    signer = _signer(MOMENT, MOMENT + 0.9, later, later)
    signed = [signer.sign(ADDRESS, keys) for keys in (KEYS, KEYS, KEYS, token)]
    assert signed[0] == signed[1]
    assert signed[2] == _signer(later).sign(ADDRESS, KEYS)
    assert signed[3] == _signer(later).sign(ADDRESS, token)
    assert len({lines[0] for lines in signed}) == 3
    assert signed[3][-1] == "x-amz-security-token: token"
