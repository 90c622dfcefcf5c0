"""Tokens that Google's and Azure's own libraries find, and what a store sees of them; the issuers are emulated."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamer.config import FetchConfig
from streamer.errors import AccessDeniedError, ConfigError, StoreError
from streamer.fetch import Fetcher
from streamer.manifest.model import Extent, ObjectRecord
from streamer.store import ObjectStore, open_store
from streamer.store.credentials import azure_tokens, google_tokens, key_ring
from streamer.store.obstore_store import ObstoreStore
from tests.clouds.token_issuers import TokenIssuer, federated, issuing_tokens, on_azure, on_google
from tests.contract.store_contract import read
from tests.contract.telling_server import RAMP, Asked, TellingServer, answer, telling

pytestmark = [pytest.mark.usefixtures("warm_runtime"), pytest.mark.process]
CLOUDS = ("gs", "az")


@pytest.fixture
def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenIssuer]:
    """An issuer, and a machine whose only identity is there."""
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_", "GCE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with issuing_tokens() as issuer:
        on_google(issuer, monkeypatch)
        on_azure(issuer, monkeypatch)
        yield issuer


@asynccontextmanager
async def reading(cloud: str, **more: object) -> AsyncIterator[tuple[TellingServer, ObjectStore, ObjectRecord]]:
    """Opens a store of each cloud, with more options, and an object in it."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(0, 10, "Last-Modified: Tue, 24 Nov 2026 00:00:00 GMT"))

    async with telling() as server:
        server.script = script
        place = f"http://127.0.0.1:{server.port}"
        options = {
            "gs": {"endpoint_url": place},
            "az": {"connection_string": f"AccountName=account;BlobEndpoint={place}"},
        }[cloud]
        store = open_store(f"{cloud}://bucket", {**options, **more})
        try:
            yield server, store, ObjectRecord(f"{cloud}://bucket/o", len(RAMP), "etag:x")
        finally:
            await store.aclose()


# The pauses of a test; the time of an outage is the real one.
PATIENT = FetchConfig(backoff_start_seconds=0.05, backoff_max_seconds=0.2)


def _tokens(asked: list[Asked]) -> list[str]:
    """Returns the token of each request."""
    return [request.headers["authorization"].removeprefix("Bearer ") for request in asked]


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_a_machine_with_an_identity_reads(
    cloud: str, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with an identity reads with one token of its metadata server, and after a refresh with another one."""
    monkeypatch.setattr(key_ring, "_WAIT_SECONDS", 60.0)  # however long a busy machine takes to import the library
    async with reading(cloud) as (server, store, record):
        for _ in range(3):
            assert await read(store, record, 0, 10) == RAMP[:10]
        await store.refresh()
        assert await read(store, record, 0, 10) == RAMP[:10]
    assert len(set(_tokens(server.asked)[:3])) == 1
    assert _tokens(server.asked)[2:] == issuer.issued


async def test_federation_with_impersonation(
    issuer: TokenIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workload identity federation exchanges another cloud's token, and the store sees the account's token."""
    federated(issuer, tmp_path, monkeypatch)
    async with reading("gs") as (server, store, record):
        assert await read(store, record, 0, 10) == RAMP[:10]
    assert _tokens(server.asked) == ["impersonated-2"]
    assert issuer.asked[0] == "/v1/token"


async def test_a_users_sign_in_as_an_option(issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's sign-in given as `token` goes to Google's issuer by obstore, and to no issuer that it names."""
    monkeypatch.setattr(google_tokens, "_USER_ISSUER", f"{issuer.url}/user/token")
    user = {"client_id": "c", "client_secret": "s", "refresh_token": "r", "token_uri": "http://127.0.0.1:1/token"}
    async with reading("gs", token=user) as (server, store, record):
        assert isinstance(store, ObstoreStore)
        assert await read(store, record, 0, 10) == RAMP[:10]
    assert _tokens(server.asked) == ["user-1"]
    assert issuer.asked == ["/user/token"]


async def test_a_users_sign_in_that_is_refused(issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's sign-in that Google refuses is denied at once, with the command to sign in."""
    monkeypatch.setattr(google_tokens, "_USER_ISSUER", f"{issuer.url}/refused/token")
    async with reading("gs", token={"client_id": "c", "client_secret": "s", "refresh_token": "r"}) as (
        _,
        store,
        record,
    ):
        with pytest.raises(AccessDeniedError, match="application-default login"):
            await read(store, record, 0, 10)


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("status", [503, 410, 429])
async def test_a_metadata_server_that_is_not_ready_is_waited_for(cloud: str, status: int, issuer: TokenIssuer) -> None:
    """A metadata server that is not ready is an error at first, and is waited for by a fetcher as a store is."""
    issuer.status = status
    async with reading(cloud) as (_, store, record):
        with pytest.raises(
            StoreError, match=rf"cannot be obtained now \(the metadata server answered {status}\)"
        ) as caught:
            await read(store, record, 0, 10)
        assert type(caught.value) is StoreError
        issuer.status = 200
        async with Fetcher(PATIENT, lambda root: store) as fetcher:
            assert await fetcher.read(Extent(record, 0, 10)) == RAMP[:10]


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_a_failed_renewal_leaves_the_old_token(
    cloud: str, issuer: TokenIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed renewal leaves the old token, which is valid for some minutes: reads go on, and a warning is logged."""
    issuer.seconds = 200.0
    async with reading(cloud) as (server, store, record):
        assert await read(store, record, 0, 10) == RAMP[:10]
        issuer.status = 503
        ring = store._ring  # type: ignore[attr-defined]
        ring._next = float("-inf")  # the time of its renewal
        for _ in range(3):
            assert await read(store, record, 0, 10) == RAMP[:10]
        while ring._looks:
            await ring._news.wait()
        assert await read(store, record, 0, 10) == RAMP[:10]
    assert len(set(_tokens(server.asked))) == 1
    assert "could not be renewed" in caplog.text


async def test_a_machine_without_an_identity(issuer: TokenIssuer) -> None:
    """A machine without an identity, to which Azure's metadata server answers 400, is denied without waiting."""
    issuer.status = 400
    async with reading("az") as (_, store, record):
        with pytest.raises(AccessDeniedError, match=r"no credentials were found.*answered 400") as caught:
            await read(store, record, 0, 10)
        assert not caught.value.details["soon"]


def test_a_sign_in_of_azure(issuer: TokenIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign-in by `az login` is enough to read from Azure."""
    issuer.status = 400
    (tmp_path / "az").write_text('#!/bin/sh\necho \'{"accessToken": "of-az", "expires_on": 4000000000}\'\n')
    (tmp_path / "az").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert azure_tokens.find("az://bucket", {}).credentials == "of-az"


def test_federation_without_the_library_is_refused(
    issuer: TokenIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials of federation are refused without google-auth, and as an option, with the name of their type."""
    path = federated(issuer, tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"external_account.*GOOGLE_APPLICATION_CREDENTIALS, not from"):
        google_tokens.find("gs://bucket", {"application_credentials": str(path)})
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(ConfigError, match=r"external_account' need google-auth; pip install 'streamer-data\[gcs\]'"):
        google_tokens.find("gs://bucket", {})


def test_a_federation_that_is_refused(issuer: TokenIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A federation without an account to impersonate is an error that names the issuer's refusal."""
    path = federated(issuer, tmp_path, monkeypatch)
    path.write_text(path.read_text().replace(":generateAccessToken", ":nothing"))
    with pytest.raises(AccessDeniedError, match="issuer of the credentials refuses: RefreshError"):
        google_tokens.find("gs://bucket", {})


@pytest.mark.parametrize("scheme", ["", "http://"])
async def test_the_emulator_of_the_environment(
    issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """STORAGE_EMULATOR_HOST is read without the machine's token, and an endpoint in the options goes before it."""
    async with reading("gs") as (named, _, target), telling() as emulator:
        emulator.script = named.script
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"{scheme}127.0.0.1:{emulator.port}")
        for options, asked in (({}, emulator), ({"endpoint_url": f"http://127.0.0.1:{named.port}"}, named)):
            store = open_store("gs://bucket", options)
            try:
                assert await read(store, target, 0, 10) == RAMP[:10]
            finally:
                await store.aclose()
            assert len(asked.asked) == 1
        assert "authorization" not in emulator.asked[0].headers
