"""Keys that expire, from each kind of issuer that botocore knows, emulated (tests/clouds/issuers.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from botocore.session import Session

from streamer.config import FetchConfig
from streamer.errors import AccessDeniedError, StoreError
from streamer.fetch import Fetcher
from streamer.store import ObjectStore, open_store
from streamer.store.credentials import key_ring
from streamer.store.root import StoreRoot
from streamer.tools.doctor.reach import credential_findings, url_findings
from tests.clouds.issuers import ARN, KINDS, Issuer, issuing, set_up
from tests.contract.store_contract import listed, read

# A process for credential_process.
pytestmark = [pytest.mark.usefixtures("warm_runtime", "moto_endpoint"), pytest.mark.process]
URL = "s3://expiring/train/0.bin"
# The pauses of a test; the time of an outage is the real one.
PATIENT = FetchConfig(backoff_start_seconds=0.05, backoff_max_seconds=0.2)


@pytest.fixture
def issuer(moto_endpoint: str) -> Iterator[Issuer]:
    """An issuer, and a gate that checks its keys in front of the bucket `expiring` of moto."""
    told = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    client = Session().create_client("s3", endpoint_url=moto_endpoint, **told)
    client.create_bucket(Bucket="expiring")
    client.close()
    with issuing(moto_endpoint) as issuer:
        yield issuer


@pytest.fixture(params=["obstore", "curl", pytest.param("fsspec", marks=pytest.mark.slow)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ObjectStore]:
    """Each client that reads S3, before its first request."""
    store = open_store("s3://expiring", {}, client=request.param)
    yield store
    await store.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_keys_are_found_and_renewed(
    issuer: Issuer, store: ObjectStore, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of an issuer serve a put, a listing and a read; after they end and a refresh, new ones serve."""
    set_up(kind, issuer, tmp_path, monkeypatch)
    monkeypatch.setattr(key_ring, "_WAIT_SECONDS", 60.0)  # however long a busy machine takes to start a program
    await store.put(URL, b"content")
    (record,) = (await listed(store, "s3://expiring/train/")).values()
    assert await read(store, record, 0, 7) == b"content"
    before = issuer.issued
    issuer.revoke()
    await store.refresh()
    assert await read(store, record, 0, 7) == b"content"
    assert issuer.issued > before


@pytest.mark.parametrize("store", ["curl", pytest.param("obstore", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_issuer_that_refuses(
    issuer: Issuer, store: ObjectStore, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An issuer that refuses is named by the error, and the store is not said to have answered."""
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
    """`streamer doctor` names the source and the expiry of keys without showing them, and a refusal of their issuer."""
    set_up("IRSA", issuer, tmp_path, monkeypatch)
    (first, *_) = await url_findings(StoreRoot.resolve("s3://expiring/train/"), "s3://expiring/train/")
    assert (first.subject, first.state) == ("credentials", "warning")
    assert "assume-role-with-web-identity" in first.fact
    assert "until" in first.fact
    assert "secret" not in first.fact
    issuer.refuses = "AccessDenied"
    (first, *_) = await url_findings(StoreRoot.resolve("s3://expiring/train/"), "s3://expiring/train/")
    assert first.state == "problem"
    assert "AssumeRoleWithWebIdentity" in first.fact


def test_the_doctor_names_whose_they_are(issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`streamer doctor` names whose the keys are, as STS answers, and asks STS for keys of AWS's own endpoint only."""
    set_up("IRSA", issuer, tmp_path, monkeypatch)
    url = "s3://expiring/train/"
    named = [finding.subject for finding in credential_findings(StoreRoot.resolve(url))]
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    *_, identity = credential_findings(StoreRoot.resolve(url))
    assert named == ["credentials"]
    assert (identity.subject, identity.state, identity.fact) == ("identity", "ok", ARN)


@pytest.mark.parametrize("store", ["curl", pytest.param("obstore", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_issuer_that_is_not_ready_is_waited_for(
    issuer: Issuer, store: ObjectStore, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An issuer that is down, a metadata server too, is an error at first, and a fetcher waits for it."""
    set_up(kind, issuer, tmp_path, monkeypatch)
    monkeypatch.setattr(key_ring, "_AGAIN_SECONDS", (0.05, 0.1))
    monkeypatch.setattr(key_ring, "_WAIT_SECONDS", 60.0)
    issuer.status = 503
    with pytest.raises(StoreError) as caught:
        await listed(store, "s3://expiring/train/")
    assert isinstance(caught.value, AccessDeniedError) == (kind == "credential_process")
    if kind == "instance role":
        assert "the metadata server answered 503" in str(caught.value)

    async def recover() -> None:
        await store._ring._news.wait()  # type: ignore[attr-defined]  # of one more look that fails
        issuer.status = 200

    async with Fetcher(PATIENT, lambda root: store) as fetcher, asyncio.TaskGroup() as group:
        group.create_task(recover())
        await fetcher.put(URL, b"content")
        assert [record.size for page in await fetcher.list("s3://expiring/train/") for record in page] == [7]


@pytest.mark.parametrize("store", ["obstore", "curl"], indirect=True)
@pytest.mark.parametrize("how", ["slow", "failing"])
async def test_no_read_waits_for_a_renewal(
    issuer: Issuer,
    store: ObjectStore,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Reads go on with valid keys while their renewal is slow or fails with 503."""
    set_up("assume role", issuer, tmp_path, monkeypatch)
    await store.put(URL, b"content")
    (record,) = (await listed(store, "s3://expiring/train/")).values()
    ring = store._ring  # type: ignore[attr-defined]
    if how == "slow":
        issuer.well.clear()
    else:
        issuer.status = 503
    ring._next = float("-inf")  # the time of the renewal
    for _ in range(20):
        assert await read(store, record, 0, 7) == b"content"
    assert issuer.issued == 1
    if how == "slow":
        assert ring._looks == 1
        issuer.well.set()
    while ring._looks:
        await ring._news.wait()
    assert (issuer.issued == 2) == (how == "slow")
    assert ("could not be renewed" in caplog.text) == (how == "failing")


@pytest.mark.parametrize("store", ["curl"], indirect=True)
async def test_keys_that_end_while_their_issuer_is_away(
    issuer: Issuer, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that expire while their issuer does not answer are an error that names the issuer, after a second or two."""
    set_up("assume role", issuer, tmp_path, monkeypatch)
    await store.put(URL, b"content")
    (record,) = (await listed(store, "s3://expiring/train/")).values()
    issuer.well.clear()
    await store.refresh()
    with pytest.raises(StoreError, match=r"their issuer has not answered for 1\.\d s"):
        await read(store, record, 0, 7)
    issuer.well.set()
    assert await read(store, record, 0, 7) == b"content"


@pytest.mark.parametrize("store", ["curl"], indirect=True)
async def test_a_container_behind_a_hop_limit_of_one(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issuer: Issuer
) -> None:
    """Behind a hop limit of 1 a container gets no metadata answer to PUT; the error says how to raise it.

    Source: "Use the Instance Metadata Service", considerations.
    """
    set_up("instance role", issuer, tmp_path, monkeypatch)
    issuer.well.clear()
    with pytest.raises(StoreError, match="the credentials cannot be obtained now"):
        await listed(store, "s3://expiring/train/")
    ring = store._ring  # type: ignore[attr-defined]
    while ring._looks:
        await ring._news.wait()
    with pytest.raises(AccessDeniedError, match=r"hop limit must be 2: aws ec2 modify-instance-metadata-options"):
        await listed(store, "s3://expiring/train/")


@pytest.mark.parametrize("store", ["curl"], indirect=True)
async def test_a_sign_in_that_has_ended(
    issuer: Issuer, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An SSO sign-in that has ended is an error with the command to sign in."""
    set_up("SSO", issuer, tmp_path, monkeypatch)
    issuer.refuses = "UnauthorizedException"
    with pytest.raises(AccessDeniedError, match=r"no sign-in is valid .*; sign in: aws sso login"):
        await listed(store, "s3://expiring/train/")


def test_the_doctor_sends_keys_of_another_store_not_to_aws(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`streamer doctor` sends STS no keys of another store, where a profile has S3's endpoint alone (R2, MinIO)."""
    set_up("IRSA", issuer, tmp_path, monkeypatch)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    (tmp_path / "config").write_text(
        f"[default]\nservices = own\n[services own]\ns3 =\n  endpoint_url = {issuer.url}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    root = StoreRoot.resolve("s3://expiring/train/")
    found = [finding.subject for finding in credential_findings(root)]
    assert found == ["credentials"]
