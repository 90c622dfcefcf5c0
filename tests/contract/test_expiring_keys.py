"""Keys that expire, from each kind of issuer that boto knows; their answers are emulated (tests/clouds/issuers.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from botocore.session import Session

from streamer.cli.doctor.reach import credential_findings, url_findings
from streamer.errors import AccessDeniedError, StoreError
from streamer.store import ObjectStore, open_store
from streamer.store.options import translate
from streamer.store.urls import split
from tests.clouds.issuers import ARN, KINDS, Issuer, issuing, set_up
from tests.contract.store_contract import listed, read

# A process for credential_process.
pytestmark = [pytest.mark.usefixtures("warm_runtime", "moto_endpoint"), pytest.mark.process]
URL = "s3://expiring/train/0.bin"


@pytest.fixture
def issuer(moto_endpoint: str) -> Iterator[Issuer]:
    """An issuer, and a gate before a bucket `expiring` of moto's."""
    told = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    client = Session().create_client("s3", endpoint_url=moto_endpoint, **told)
    client.create_bucket(Bucket="expiring")
    client.close()
    with issuing(moto_endpoint) as issuer:
        yield issuer


@pytest.fixture(params=["obstore", "curl", "fsspec"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ObjectStore]:
    """Each client that reads S3, before its first request."""
    store = open_store("s3://expiring", {}, client=request.param)
    yield store
    await store.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_keys_are_found_and_renewed(
    issuer: Issuer, store: ObjectStore, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put, a listing and a read with keys of a minute; after their end, once refreshed, a read with new ones."""
    set_up(kind, issuer, tmp_path, monkeypatch)
    await store.put(URL, b"content")
    (record,) = (await listed(store, "s3://expiring/train/")).values()
    assert await read(store, record, 0, 7) == b"content"
    before = issuer.issued
    issuer.revoke()
    await store.refresh()
    assert await read(store, record, 0, 7) == b"content"
    assert issuer.issued > before


@pytest.mark.parametrize("store", ["obstore", "curl"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_issuer_that_refuses(
    issuer: Issuer, store: ObjectStore, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the issuer that is named, not an answer of the store, which nobody asked."""
    set_up(kind, issuer, tmp_path, monkeypatch)
    issuer.refuses = "AccessDenied"
    with pytest.raises(StoreError) as caught:
        await listed(store, "s3://expiring/train/")
    assert "the store answered" not in str(caught.value)
    assert caught.value.details["status"] is None
    if kind in ("IRSA", "assume role"):
        assert isinstance(caught.value, AccessDeniedError)
        assert "AssumeRole" in str(caught.value)
        assert "AccessDenied" in str(caught.value)


async def test_the_doctor_names_their_source_and_their_end(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither key nor token is shown; an end within ten minutes is a warning."""
    set_up("IRSA", issuer, tmp_path, monkeypatch)
    (first, *_) = await url_findings("s3://expiring/train/", {})
    assert (first.subject, first.state) == ("credentials", "warning")
    assert "assume-role-with-web-identity" in first.fact
    assert "until" in first.fact
    assert "secret" not in first.fact
    issuer.refuses = "AccessDenied"
    (first, *_) = await url_findings("s3://expiring/train/", {})
    assert first.state == "problem"
    assert "AssumeRoleWithWebIdentity" in first.fact


def test_the_doctor_names_whose_they_are(issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STS says it, and is asked for the keys of AWS's own endpoint only."""
    set_up("IRSA", issuer, tmp_path, monkeypatch)
    address = split("s3://expiring/train/")
    named = [finding.subject for finding in credential_findings(address, translate(address, {}))]
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    *_, identity = credential_findings(address, translate(address, {}))
    assert named == ["credentials"]
    assert (identity.subject, identity.state, identity.fact) == ("identity", "ok", ARN)
