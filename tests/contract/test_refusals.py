"""What a refusal of a store becomes: the store's own text, one advice for each code, and whether it is final."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streamer.errors import AccessDeniedError, ConfigError, StoreError
from streamer.fetch.retry import retryable
from streamer.manifest.model import ObjectRecord
from streamer.store import fsspec_errors, open_store
from tests.contract.store_contract import listed, read
from tests.contract.telling_server import RAMP, Asked, TellingServer, telling

pytestmark = [pytest.mark.usefixtures("warm_runtime"), pytest.mark.process]

KMS = (
    "User: arn:aws:sts::1:assumed-role/reader/x is not authorized to perform: kms:Decrypt on resource: "
    "arn:aws:kms:eu-west-1:1:key/2; token=hidden; " + "because " * 40
)
every_client = pytest.mark.parametrize("client", ["curl", "obstore", "fsspec"])


@pytest.fixture
async def server() -> AsyncIterator[TellingServer]:
    """A server that answers as the test says."""
    async with telling() as server:
        yield server


async def refused(server: TellingServer, client: str, status: int, code: str, message: str) -> StoreError:
    """Returns the error of a read where the store answers so, in XML."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    server.says(head.encode() + body)
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{server.port}"}
    store = open_store("s3://bucket", options, client=client)  # type: ignore[arg-type]
    try:
        with pytest.raises(StoreError) as caught:
            await read(store, ObjectRecord("s3://bucket/o", len(RAMP), "etag:x"), 0, 10)
    finally:
        await store.aclose()
    return caught.value


@every_client
async def test_the_sentence_of_the_store(server: TellingServer, client: str) -> None:
    """The text of a store's refusal is in the error, with its role, action and KMS key; it is cut and has no secret."""
    error = await refused(server, client, 403, "AccessDenied", KMS)
    assert isinstance(error, AccessDeniedError)
    assert (
        "403 AccessDenied (User: arn:aws:sts::1:assumed-role/reader/x is not authorized to perform: kms:Decrypt"
        in str(error)
    )
    assert "check the credentials" in str(error)
    assert "hidden" not in str(error)
    assert len(str(error)) < 600


@every_client
@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "InvalidObjectState", "the object is archived; restore it"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (403, "InvalidAccessKeyId", "does not know this key"),
        (403, "AuthorizationPermissionMismatch", "Storage Blob Data Reader"),
        (403, "SignatureDoesNotMatch", "check the secret key"),
        (400, "ExpiredToken", "the credentials have expired"),
    ],
)
async def test_one_advice_per_code(server: TellingServer, client: str, status: int, code: str, advice: str) -> None:
    """Each code of a refusal has its own advice, with the store's text."""
    error = await refused(server, client, status, code, "Told by the store.")
    assert advice in str(error)
    assert "bucket's policy" not in str(error)
    assert "Told by the store." in str(error)


@pytest.mark.parametrize("how", ["HEAD is refused", "no length", "no ranges either"])
async def test_a_web_server_without_head(server: TellingServer, how: str) -> None:
    """A web server without HEAD or length is asked for a byte; one without ranges as well is a final error."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.head.startswith(b"HEAD") and how == "no length":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        elif asked.head.startswith(b"HEAD"):
            writer.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
        elif how == "no ranges either":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        else:
            writer.write(asked.good())

    server.script = script
    root = f"http://127.0.0.1:{server.port}"
    store = open_store(root, {})
    try:
        if how != "no ranges either":
            (record,) = (await listed(store, f"{root}/o")).values()
            assert (record.size, record.version) == (len(RAMP), "etag:x")
            return
        with pytest.raises(StoreError, match="the server serves no ranges") as caught:
            await listed(store, f"{root}/o")
        assert not retryable(caught.value)
    finally:
        await store.aclose()


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'x'"), AttributeError("x"), TypeError("x")])
def test_what_a_foreign_library_cannot_do_is_final(error: Exception) -> None:
    """A missing module or attribute of another library is a final ConfigError; text it cannot decode is retried.

    The former were waited for as an outage.
    """
    assert isinstance(fsspec_errors.map_error("hdfs://h/x", error, None), ConfigError)
    assert retryable(fsspec_errors.map_error("hdfs://h/x", UnicodeDecodeError("utf-8", b"", 0, 1, "x"), None))
