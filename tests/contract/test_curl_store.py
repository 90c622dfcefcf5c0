"""What libcurl must do beyond the contract: signatures, odd answers, ends, TLS and proxies, with real servers."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
import os
import random
import re
import ssl
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trustme
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.session import Session
from botocore.utils import percent_encode
from hypothesis import example, given
from hypothesis import strategies as st

from streamer.config import FetchConfig
from streamer.errors import (
    AccessDeniedError,
    ClosedError,
    ConfigError,
    ObjectChangedError,
    ShortReadError,
    StoreError,
    ThrottledError,
)
from streamer.fetch import Fetcher, fetcher
from streamer.manifest.model import ObjectRecord
from streamer.store import ObjectStore, open_store
from streamer.store.base import Get, PartsKeeper, Upload
from streamer.store.curl import listing
from streamer.store.curl import store as curl_store
from streamer.store.curl.listing import ListedPage
from streamer.store.curl.store import CurlStore
from tests.contract.store_contract import read
from tests.contract.telling_server import RAMP, Asked, TellingServer, answer, telling

pytestmark = pytest.mark.usefixtures("warm_runtime")

KEY, SECRET, TOKEN = "AKIAEXAMPLE", "se/cr+et=do-not-show", "to/ken+=="
KEYS = {"key": KEY, "secret": SECRET, "token": TOKEN}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes what the environment says of AWS and of proxies."""
    for name in [*os.environ]:
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _record(url: str, version: str = "etag:x") -> ObjectRecord:
    """Returns the record of an object with the size of RAMP."""
    return ObjectRecord(url, len(RAMP), version)


@asynccontextmanager
async def opened(root: str, options: Mapping[str, object]) -> AsyncIterator[ObjectStore]:
    """Opens a store that reads by libcurl."""
    store = open_store(root, options, client="curl")
    assert isinstance(store, CurlStore)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def bucket(options: Mapping[str, object] | None = None) -> AsyncIterator[tuple[TellingServer, ObjectStore]]:
    """Opens a bucket at a server that answers as the test says."""
    async with telling() as server:
        given = {**KEYS, "endpoint_url": f"http://127.0.0.1:{server.port}", **(options or {})}
        async with opened("s3://bucket", given) as store:
            yield server, store


@asynccontextmanager
async def web(options: Mapping[str, object] | None = None) -> AsyncIterator[tuple[TellingServer, ObjectStore, str]]:
    """Opens a web server that answers as the test says, and yields its url."""
    async with telling() as server:
        root = f"http://127.0.0.1:{server.port}"
        async with opened(root, options or {}) as store:
            yield server, store, root


async def good(store: ObjectStore, url: str = "s3://bucket/o") -> bool:
    """Returns whether a read has the right bytes."""
    return await read(store, _record(url), 1000, 301_000) == RAMP[1000:301_000]


# Signatures


def _as_boto_signs(asked: Asked, port: int) -> str:
    """Returns the Authorization that botocore writes for the same request at the same moment."""
    headers = asked.headers
    found = re.search(r"SignedHeaders=([^,]+)", headers["authorization"])
    assert found is not None
    own = {"x-amz-date", "x-amz-content-sha256", "x-amz-security-token"}
    request = AWSRequest(
        asked.head.split(b" ", 1)[0].decode(),
        f"http://127.0.0.1:{port}{asked.path}",
        headers={name: headers[name] for name in found[1].split(";") if name not in own},
    )
    request.context["payload_signing_enabled"] = True
    moment = datetime.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%S%z")
    with mock.patch("botocore.auth.get_current_datetime", return_value=moment):
        S3SigV4Auth(Credentials(KEY, SECRET, TOKEN), "s3", "us-east-1").add_auth(request)
    return str(request.headers["Authorization"])


def _fits(key: str) -> bool:
    """Returns whether S3 allows a key of this length."""
    return len(key.encode()) <= 1024


# fmt: off
ODD_KEYS = (
    "a b", "a+b", "a&b=c", "a:b*c%d~e'f(g)", "ü", "🎉", "e\u0301", "a//b", "/leading", "//", "trailing/", "%2e%2e/x",
    "%41", "%", "a?x=1&y", "#y", "k" * 1024, "a\\b\"c<d>", "^`{|}", "a\tb", " ", "...", "a/...b", "a;b,c@d$e!f",
    "a/./b", "a/../b", "..", "a/..", "../other", ".",
)
# fmt: on


def test_every_key_is_asked_for_and_signed_as_boto_does() -> None:
    """A key of any characters is requested with the path and signature of botocore, session token included."""

    async def asked_for(key: str) -> None:
        server.asked.clear()
        assert await read(store, _record(f"s3://bucket/{key}"), 5, 9) == RAMP[5:9]
        (asked,) = server.asked
        assert asked.path == "/bucket/" + percent_encode(key, safe="/~")
        assert asked.headers["authorization"] == _as_boto_signs(asked, server.port)
        assert (
            "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token," in asked.headers["authorization"]
        )

    @given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(_fits))
    def signed(key: str) -> None:
        runner.run(asked_for(key))

    for key in ODD_KEYS:
        signed = example(key)(signed)
    with asyncio.Runner() as runner:
        ends = bucket()
        server, store = runner.run(ends.__aenter__())
        try:
            signed()
        finally:
            runner.run(ends.__aexit__(None, None, None))


UPLOADS = """<ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url</EncodingType>
<IsTruncated>{more}</IsTruncated><NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>
<Upload><Key>{key}</Key><UploadId>{id}</UploadId></Upload></ListMultipartUploadsResult>"""


async def test_unfinished_uploads_are_listed_and_removed() -> None:
    """Unfinished uploads are listed in pages and removed, with keys and ids of any characters, signed as by boto."""
    pages = [
        UPLOADS.format(more="true", key="a/%C3%BC+%2B", id="i+/=1"),
        UPLOADS.format(more="false", key="a/b", id="2"),
    ]

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        assert asked.headers["authorization"] == _as_boto_signs(asked, server.port)
        if asked.head.startswith(b"DELETE"):
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            return
        body = pages.pop(0).encode()
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    async with bucket() as (server, store):
        assert isinstance(store, PartsKeeper)
        server.script = script
        found = await store.list_partial_uploads("s3://bucket/a/")
        assert found == [Upload("s3://bucket/a/ü +", "i+/=1"), Upload("s3://bucket/a/b", "2")]
        await store.abort(found[0])
        assert [asked.path for asked in server.asked] == [
            "/bucket/?encoding-type=url&prefix=a%2F&uploads=",
            "/bucket/?encoding-type=url&key-marker=a%2F%C3%BC%20%2B&prefix=a%2F&upload-id-marker=i%2B%2F%3D1&uploads=",
            "/bucket/a/%C3%BC%20%2B?uploadId=i%2B%2F%3D1",
        ]
        missing = b"<Error><Code>NoSuchUpload</Code></Error>"
        server.says(f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(missing)}\r\n\r\n".encode() + missing)
        await store.abort(found[1])
        server.says(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>")
        with pytest.raises(ConfigError, match="not a list of S3's uploads"):
            await store.list_partial_uploads("s3://bucket/a/")


async def test_moto_takes_the_signature_and_no_other(moto_endpoint: str) -> None:
    """A server that checks signatures serves the right secret and refuses another one, which is not shown."""
    told = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    iam = Session().create_client("iam", endpoint_url=moto_endpoint, **told)
    iam.create_user(UserName="reader")
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=json.dumps(policy))
    pair = iam.create_access_key(UserName="reader")["AccessKey"]
    s3 = Session().create_client("s3", endpoint_url=moto_endpoint, **told)
    s3.create_bucket(Bucket="guarded")
    tag = s3.put_object(Bucket="guarded", Key="a b+ü%/x", Body=RAMP[:100])["ETag"]
    iam.close()
    s3.close()
    record = ObjectRecord("s3://guarded/a b+ü%/x", 100, "etag:" + tag.strip('"'))
    _moto_checks(moto_endpoint, after="0")
    try:
        options = {"key": pair["AccessKeyId"], "endpoint_url": moto_endpoint}
        async with opened("s3://guarded", {**options, "secret": pair["SecretAccessKey"]}) as store:
            assert await read(store, record, 10, 90) == RAMP[10:90]
        async with opened("s3://guarded", {**options, "secret": SECRET}) as store:
            with pytest.raises(AccessDeniedError, match="SignatureDoesNotMatch") as caught:
                await read(store, record, 10, 90)
        assert SECRET not in str(caught.value) + repr(caught.value.details) + repr(store)
    finally:
        _moto_checks(moto_endpoint, after="inf")


def _moto_checks(endpoint: str, *, after: str) -> None:
    """Makes moto check signatures after so many requests."""
    request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", after.encode(), {"Content-Type": "text/plain"})
    with urllib.request.urlopen(request) as response:
        assert response.status == 200


async def test_anonymous_requests_are_not_signed() -> None:
    """Anonymous requests have neither Authorization nor a date of AWS."""
    async with bucket({"key": None, "secret": None, "token": None, "anon": True}) as (server, store):
        assert await good(store)
        assert not {"authorization", "x-amz-date", "x-amz-security-token"} & set(server.asked[0].headers)


@pytest.mark.parametrize("boto", [True, False])
async def test_endpoint_region_and_keys_of_the_environment(boto: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoint, region and keys of the environment are used by libcurl and obstore, with and without botocore.

    The sidecar's image has no botocore.
    """
    if not boto:
        monkeypatch.setitem(sys.modules, "botocore.session", None)
    async with telling() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("AWS_REGION", "eu-north-7")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
        for client in ("curl", "obstore"):
            store = open_store("s3://bucket", {}, client=client)  # type: ignore[arg-type]
            assert await read(store, _record("s3://bucket/o"), 0, 9) == RAMP[:9]
            await store.aclose()
    assert [asked.headers["user-agent"].partition("/")[0] for asked in server.asked] == ["streamer", "object_store"]
    for asked in server.asked:
        assert re.search(rf"Credential={KEY}/\d+/eu-north-7/s3/", asked.headers["authorization"])
        assert asked.headers["x-amz-security-token"] == TOKEN


@pytest.mark.parametrize("token", [None, "mine"])
async def test_keys_of_the_options_come_with_their_own_token_only(
    token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of the options come with their own token only, as AWS_SESSION_TOKEN is for the environment's keys."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    async with telling() as server:
        options = {"key": KEY, "secret": SECRET, "token": token, "endpoint_url": f"http://127.0.0.1:{server.port}"}
        for client in ("curl", "obstore"):
            store = open_store("s3://bucket", options, client=client)  # type: ignore[arg-type]
            assert await read(store, _record("s3://bucket/o"), 0, 9) == RAMP[:9]
            await store.aclose()
    assert len(server.asked) == 2
    for asked in server.asked:
        assert f"Credential={KEY}/" in asked.headers["authorization"]
        assert asked.headers.get("x-amz-security-token") == token


async def test_a_profile_has_keys_and_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile gives keys and region as botocore finds them; after a refresh its new ones are used."""
    file = tmp_path / "config"
    file.write_text("[profile mine]\nregion = here-1\naws_access_key_id = first\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    async with telling() as server:
        options = {"profile": "mine", "endpoint_url": f"http://127.0.0.1:{server.port}"}
        async with opened("s3://bucket", options) as store:
            assert await good(store)
            file.write_text(file.read_text().replace("first", "second").replace("here-1", "there-2"))
            assert await good(store)
            await store.refresh()
            assert await good(store)
    found = [re.search(r"Credential=(\w+)/\d+/([^/]+)", asked.headers["authorization"]) for asked in server.asked]
    assert [hit and hit.groups() for hit in found] == [("first", "here-1"), ("first", "here-1"), ("second", "there-2")]


async def test_a_profile_that_is_not_there_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that does not exist is a ConfigError of streamer that names botocore's error."""
    async with opened("s3://bucket", {"profile": "nobody"}) as store:
        with pytest.raises(ConfigError, match="ProfileNotFound"):
            await read(store, _record("s3://bucket/o"), 0, 9)


# Answers

_HEAD = 'HTTP/1.1 206 P\r\nETag: "x"\r\nContent-Range: bytes 0-9/400000\r\n'
_CHUNKED = _HEAD + "Transfer-Encoding: chunked\r\n\r\n"
_GOOD = {
    "chunked": _CHUNKED.encode() + b"4\r\n" + RAMP[:4] + b"\r\n6\r\n" + RAMP[4:10] + b"\r\n0\r\n\r\n",
    "a trailer": _CHUNKED.encode() + b"a\r\n" + RAMP[:10] + b"\r\n0\r\nETag: y\r\n\r\n",
    "compressed by the uploader": answer(0, 10, "Content-Encoding: gzip"),
    "informed before": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nETag: y\r\n\r\n" + answer(0, 10),
    "a tag that a proxy has weakened": answer(0, 10, tag='W/"x"'),
    "other spelling": answer(0, 10).replace(b"ETag:", b"eTAG:").replace(b"Content-Range", b"content-range"),
}


@pytest.mark.parametrize("name", _GOOD)
async def test_good_answers_of_other_forms(name: str) -> None:
    """Correct answers of other forms give the same ten bytes: chunked, with trailers, with a weakened ETag."""
    async with web() as (server, store, root):
        server.says(_GOOD[name])
        assert await read(store, _record(f"{root}/o"), 0, 10) == RAMP[:10]


def _status(line: str, *headers: str, body: bytes = b"") -> bytes:
    """Returns an answer with this status line."""
    return "\r\n".join([f"HTTP/1.1 {line}", *headers, f"Content-Length: {len(body)}", "", ""]).encode() + body


_BAD: dict[str, tuple[bytes, type[StoreError], str]] = {
    "all of it instead of the range": (_status("200 OK", 'ETag: "x"', body=RAMP), StoreError, "does not serve ranges"),
    "another range": (answer(5, 15), ShortReadError, "asked for bytes 0-9, .*bytes 5-14"),
    "a range of unknown size": (answer(0, 10).replace(b"/400000", b"/*"), ShortReadError, "bytes 0-9/.*a proxy"),
    "no range": (_status("206 P", 'ETag: "x"', body=RAMP[:10]), ShortReadError, "Content-Range: none"),
    "another size": (answer(0, 10).replace(b"/400000", b"/400001"), ObjectChangedError, "400001 bytes"),
    "another tag": (answer(0, 10, tag='"y"'), ObjectChangedError, "etag:y"),
    "another weak tag": (answer(0, 10, tag='W/"y"'), ObjectChangedError, "W/"),
    "no tag": (answer(0, 10).replace(b'ETag: "x"\r\n', b""), ObjectChangedError, "stat:400000:0"),
    "too much": (answer(0, 10, body=RAMP[:20]), ShortReadError, "20 of 10"),
    "too little": (answer(0, 10, body=RAMP[:5]), ShortReadError, "5 of 10"),
    "nothing": (answer(0, 10, body=b""), ShortReadError, "0 of 10"),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\n\r\n", StoreError, "304"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", StoreError, "204"),
    "beyond the end": (_status("416 Range"), ObjectChangedError, "shorter than the manifest"),
    "nowhere to go": (_status("302 Found"), StoreError, "302"),
    "another protocol": (_status("302 Found", "Location: file:///etc/passwd"), StoreError, "does not speak HTTP"),
    "no HTTP": (b"\x15\x03\x01\x00\x02\x02\x28\r\n", StoreError, "does not speak HTTP"),
    "a bad date and no tag": (
        answer(0, 10).replace(b'ETag: "x"', b"Last-Modified: yesterday"),
        ObjectChangedError,
        "stat:400000:0",
    ),
}


@pytest.mark.parametrize("name", _BAD)
async def test_bad_answers_are_our_errors(name: str) -> None:
    """A wrong answer is an error of its own type, and does not affect the next read."""
    reply, error, text = _BAD[name]
    async with web() as (server, store, root):
        assert await read(store, _record(f"{root}/o"), 0, 10) == RAMP[:10]  # nothing of it counts for the next
        server.says(reply)
        with pytest.raises(error, match=text) as caught:
            await asyncio.wait_for(read(store, _record(f"{root}/o"), 0, 10), 30)
        assert type(caught.value) is error
        server.script = None
        assert await good(store, f"{root}/o")


@pytest.mark.parametrize(
    ("version", "sent"),
    [
        ("etag:a b", '"a b"'),
        ('etag:W/"y"', None),
        ('etag:x"\r\nEvil: 1', None),
        ("etag:\xe9", None),
        ("stat:1:2", None),
    ],
)
async def test_what_cannot_be_sent_is_compared(version: str, sent: str | None) -> None:
    """A version that cannot be sent as If-Match is not sent, and is compared with the ETag that comes."""
    async with web() as (server, store, root):
        with pytest.raises(ObjectChangedError):
            await read(store, _record(f"{root}/o", version), 0, 10)
        headers = server.asked[0].headers
        assert (headers.get("if-match"), "evil" in headers) == (sent, False)


@pytest.mark.parametrize("asked", ["7", "nan", "inf", "-5", "Wed, 21 Oct 2037 07:28:00 GMT"])
async def test_only_a_number_of_seconds_closes_the_window(asked: str) -> None:
    """Only a number of seconds in Retry-After is taken; dates and other numbers are not."""
    async with bucket() as (server, store):
        server.says(_status("503 Slow Down", f"Retry-After: {asked}"))
        with pytest.raises(ThrottledError) as caught:
            await read(store, _record("s3://bucket/o"), 0, 10)
        assert caught.value.details["retry_after_seconds"] == (7.0 if asked == "7" else None)


_ENDLESS = {
    "headers": (b"HTTP/1.1 206 P\r\n", b"X: " + b"y" * 1000 + b"\r\n", StoreError),
    "a refusal": (b"HTTP/1.1 500 Oh\r\n\r\n", b"z" * 10_000, StoreError),
    "a body": (_HEAD.encode() + b"\r\n", b"z" * 10_000, ShortReadError),
}


@pytest.mark.parametrize("name", _ENDLESS)
async def test_what_does_not_end_is_ended(name: str) -> None:
    """Headers, refusals and bodies without end are an error, and no byte beyond those asked for is delivered."""
    begin, more, error = _ENDLESS[name]

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while True:
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(0)

    taken = bytearray()
    async with web() as (server, store, root):
        server.script = script
        with pytest.raises(error):
            await asyncio.wait_for(store.get(Get(_record(f"{root}/o"), 0, 10), taken.extend), 30)
        assert len(taken) <= 10
        assert store.statistics().received_bytes < 1_000_000


# Redirects


async def test_a_redirect_takes_the_range_and_not_the_headers() -> None:
    """A redirect to another host takes the range and none of the user's headers; one on the same host takes all."""
    private = {"Authorization": "Bearer t", "X-Api-Key": "k", "Cookie": "c=1", "X-Empty": ""}
    async with telling() as other, web({"headers": private}) as (server, store, root):
        there = f"http://localhost:{other.port}/there?signed=1%2F2#part"

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            onward = "/second" if asked.path == "/first" else there
            writer.write(_status("302 Found", f"Location: {onward}", body=b"moved"))

        server.script = script
        assert await good(store, f"{root}/first")
        assert [asked.path for asked in server.asked] == ["/first", "/second"]
        for asked in server.asked:
            assert {name: asked.headers.get(name.lower()) for name in private} == private
        (asked,) = other.asked
        assert asked.path == "/there?signed=1%2F2"
        assert not {name.lower() for name in private} & set(asked.headers)
        assert (asked.headers["range"], asked.headers["if-match"]) == ("bytes=1000-300999", '"x"')


async def test_redirects_end() -> None:
    """More than ten redirects of a web server are an error."""
    async with web() as (server, store, root):
        server.says(_status("302 Found", "Location: /again"))
        with pytest.raises(StoreError, match="redirects too often"):
            await read(store, _record(f"{root}/o"), 0, 10)
        assert len(server.asked) == 11


@pytest.mark.parametrize("line", ["301 Moved Permanently", "307 Temporary Redirect"])
async def test_a_bucket_elsewhere_is_said_and_not_followed(line: str) -> None:
    """A bucket that redirects elsewhere is an error, and no keys are sent to the other host."""
    async with telling() as other, bucket() as (server, store):
        server.says(_status(line, f"Location: http://127.0.0.1:{other.port}/bucket/o"))
        with pytest.raises(StoreError, match="another region"):
            await read(store, _record("s3://bucket/o"), 0, 10)
        assert other.asked == []


@pytest.mark.parametrize("hosts", [["localhost"], ["*.internal", "LOCAL*"], ("10.0.0.0/8", "127.0.0.0/8")])
async def test_a_cluster_of_caches_sends_to_its_own_servers(hosts: Sequence[str]) -> None:
    """A cluster of caches may redirect to the hosts of `redirects`, which get the range and no keys or signature."""
    name = "127.0.0.1" if "/" in hosts[0] else "localhost"
    async with telling() as other, telling() as server:
        there = f"http://{name}:{other.port}/there?pid=t1&utm=2"
        server.says(_status("307 Temporary Redirect", f"Location: {there}"))
        options = {**KEYS, "endpoint_url": f"http://127.0.0.1:{server.port}/s3", "redirects": hosts}
        async with opened("s3://bucket", options) as store:
            assert await good(store)
        assert server.asked[0].path == "/s3/bucket/o"
        assert "authorization" in server.asked[0].headers
        (asked,) = other.asked
        assert asked.path == "/there?pid=t1&utm=2"
        assert not [name for name in asked.headers if name.startswith(("authorization", "x-amz"))]
        assert (asked.headers["range"], asked.headers["if-match"]) == ("bytes=1000-300999", '"x"')


@pytest.mark.parametrize("hosts", [["*.internal"], ["10.0.0.0/8"], ["127.0.0.1"]])
async def test_a_server_that_is_none_of_the_cluster_is_not_asked(hosts: Sequence[str]) -> None:
    """A redirect to a host that `redirects` does not name is an error with the host and the option."""
    async with telling() as other, bucket({"redirects": hosts}) as (server, store):
        server.says(_status("307 Temporary Redirect", f"Location: http://localhost:{other.port}/o"))
        with pytest.raises(StoreError, match=re.escape("storage_options={'redirects': ['localhost']}")):
            await good(store)
        assert other.asked == []


async def test_a_cluster_of_caches_that_redirects_for_ever() -> None:
    """More than three redirects of a cluster of caches are an error."""
    async with bucket({"redirects": ["127.0.0.1"]}) as (server, store):
        server.says(_status("308 Permanent Redirect", "Location: /again"))
        with pytest.raises(StoreError, match="redirects too often"):
            await good(store)
        assert len(server.asked) == 4


@pytest.mark.parametrize("hosts", ["localhost", [""], ["10.0.0.0/99"], [7], {"localhost": 1}])
def test_what_is_no_list_of_hosts(hosts: object) -> None:
    """A value of `redirects` that is no list of hosts is refused before any request."""
    with pytest.raises(ConfigError, match="redirects="):
        open_store("s3://bucket", {"redirects": hosts})


@pytest.mark.parametrize("given", [{"client": "obstore"}, {"client": "fsspec"}])
def test_others_than_libcurl_follow_no_redirects(given: dict[str, Any]) -> None:
    """Clients other than libcurl refuse `redirects`, because they follow none."""
    with pytest.raises(ConfigError, match="only libcurl follows redirects"):
        open_store("s3://bucket", {"redirects": ["localhost"]}, **given)


# Ends


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """The authority of the certificates of these tests."""
    return trustme.CA()


def _context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    """Makes the context of a server with this certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    return context


@asynccontextmanager
async def secure(
    authority: trustme.CA, folder: Path, certificate: trustme.LeafCert | None = None
) -> AsyncIterator[tuple[TellingServer, ObjectStore]]:
    """Opens a bucket behind TLS, whose authority is trusted."""
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    async with telling(_context(certificate or authority.issue_cert("127.0.0.1"))) as server:
        told = {"endpoint_url": f"https://127.0.0.1:{server.port}", "client_kwargs": {"verify": str(folder / "ca.pem")}}
        async with opened("s3://bucket", {**KEYS, **told}) as store:
            yield server, store


@pytest.mark.parametrize("turns", range(4))
async def test_cancelled_while_connecting(turns: int, authority: trustme.CA, tmp_path: Path) -> None:
    """A read that is cancelled while it connects raises CancelledError, and the next read gets its bytes."""
    async with secure(authority, tmp_path) as (_, store):
        assert await good(store)  # what is found once is found
        reading = asyncio.create_task(store.get(Get(_record("s3://bucket/o"), 0, 10, fresh=True), bytearray().extend))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await good(store)


async def test_cancelled_in_a_handshake_that_never_ends() -> None:
    """A read can be cancelled in a TLS handshake that the server never answers."""
    async with telling() as server:
        endpoint = f"https://127.0.0.1:{server.port}"
        async with opened("s3://bucket", {**KEYS, "endpoint_url": endpoint}) as store:
            reading = asyncio.create_task(read(store, _record("s3://bucket/o"), 0, 10))
            await server.connected.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        assert server.asked == []


async def test_cancelled_before_the_first_byte() -> None:
    """A read that is cancelled before its first byte is dropped, and the next read gets its bytes."""
    async with bucket() as (server, store):

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        server.script = script
        reading = asyncio.create_task(read(store, _record("s3://bucket/o"), 0, 10))
        await server.came.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        server.script = None
        assert await good(store)


@pytest.mark.parametrize("at", [1, 10, len(RAMP)])
async def test_cancelled_by_the_very_piece(at: int, authority: trustme.CA, tmp_path: Path) -> None:
    """A read that its receiver cancels at a piece, even the last one, is cancelled and delivers no further piece."""
    async with secure(authority, tmp_path) as (_, store):
        taken, seen = 0, 0

        def take(piece: bytes | memoryview) -> None:
            nonlocal taken
            taken += len(piece)
            if taken >= at:
                reading.cancel()

        reading = asyncio.create_task(store.get(Get(_record("s3://bucket/o"), 0, len(RAMP)), take))
        with pytest.raises(asyncio.CancelledError):
            await reading
        seen = taken
        assert await good(store)
        assert taken == seen


async def test_cancelled_at_any_moment(authority: trustme.CA, tmp_path: Path) -> None:
    """Of hundreds of reads that are cancelled at any moment, those that end have their own bytes."""
    fate = random.Random(5)
    ended = 0

    async def one(store: ObjectStore) -> None:
        nonlocal ended
        start = fate.randrange(0, 200_000)
        stop = start + fate.choice([10, 1000, 70_000, 200_000])
        reading = asyncio.create_task(read(store, _record("s3://bucket/o"), start, stop))
        if fate.random() < 0.7:
            for _ in range(fate.randrange(30)):
                await asyncio.sleep(0)
            reading.cancel()
        (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        if not isinstance(outcome, asyncio.CancelledError):
            assert outcome == RAMP[start:stop]
            ended += 1

    async with secure(authority, tmp_path) as (_, store):
        for _ in range(12):
            await asyncio.gather(*(one(store) for _ in range(20)))
    assert 30 < ended < 240


async def test_what_take_raises_arrives() -> None:
    """An error of the receiver is raised to the caller unchanged, and the next read gets its bytes."""

    class OwnError(Exception):
        """Stands for an error of the caller's own."""

    def take(piece: bytes | memoryview) -> None:
        raise OwnError

    async with bucket() as (_, store):
        with pytest.raises(OwnError) as caught:
            await store.get(Get(_record("s3://bucket/o"), 0, 100_000), take)
        assert caught.value.__cause__ is None
        assert await good(store)


async def test_closed_while_it_reads() -> None:
    """A read whose store is closed raises ClosedError, and a closed store that is used again opens again."""
    async with bucket() as (server, store):

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        server.script = script
        reading = asyncio.create_task(read(store, _record("s3://bucket/o"), 0, 10))
        await server.came.wait()
        await store.aclose()
        with pytest.raises(ClosedError, match="s3://bucket/o"):
            await reading
        server.script = None
        assert await good(store)


async def test_closed_while_it_lists() -> None:
    """A listing whose store is closed raises ClosedError; its task is not cancelled."""
    async with bucket() as (server, store):

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async def ask() -> list[object]:
            return [page async for page in store.list("s3://bucket/")]

        server.script = script
        listing = asyncio.create_task(ask())
        await server.came.wait()
        await store.aclose()
        with pytest.raises(ClosedError, match="s3://bucket"):
            await listing


async def test_refreshed_while_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request under way while the store is refreshed ends well, and the next one has the new keys and region."""
    file = tmp_path / "config"
    file.write_text("[default]\nregion = here-1\naws_access_key_id = first\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    told = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await told.wait()
        writer.write(asked.good())

    async with bucket({"key": None, "secret": None, "token": None}) as (server, store):
        server.script = script
        reading = asyncio.create_task(good(store))
        await server.came.wait()
        file.write_text(file.read_text().replace("first", "second").replace("here-1", "there-2"))
        await store.refresh()
        told.set()
        assert await reading
        assert await good(store)
        found = [re.search(r"Credential=(\w+)/\d+/([^/]+)", asked.headers["authorization"]) for asked in server.asked]
        assert [hit and hit.groups() for hit in found] == [("first", "here-1"), ("second", "there-2")]


async def test_three_hundred_at_once() -> None:
    """Three hundred reads at once each have their own bytes."""
    async with bucket() as (_, store):
        found = await asyncio.gather(
            *(read(store, _record("s3://bucket/o"), i * 1000, i * 1000 + 999) for i in range(300))
        )
        assert found == [RAMP[i * 1000 : i * 1000 + 999] for i in range(300)]


# Connections


async def test_connections_are_used_again_unless_a_fresh_one_is_asked_for() -> None:
    """A connection is used again unless a fresh one is asked for."""
    async with bucket() as (server, store):
        for fresh in (False, False, True, False):
            await store.get(Get(_record("s3://bucket/o"), 0, 10, fresh=fresh), bytearray().extend)
        numbers = [asked.connection for asked in server.asked]
        assert numbers[:3] == [1, 1, 2]
        assert numbers[3] in (1, 2)
        assert server.connections == 2


@pytest.mark.parametrize("how", ["while idle", "as it is asked"])
async def test_a_connection_that_was_closed_is_no_error(how: str) -> None:
    """A connection that the server closes, idle or at the request, is no error: libcurl opens another one."""
    async with bucket() as (server, store):

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if how == "as it is asked" and len(server.asked) == 2:
                writer.close()
            else:
                writer.write(asked.good())

        server.script = script
        assert await good(store)
        if how == "while idle":
            server.writers[0].close()
            await server.writers[0].wait_closed()
        assert await good(store)
        assert server.connections == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_fork_neither_reads_nor_says_goodbye(authority: trustme.CA, tmp_path: Path) -> None:
    """A forked child is refused a read, and its close leaves the connection to the parent, which reads on over it."""
    async with secure(authority, tmp_path) as (server, store):
        assert await good(store)
        child = os.fork()
        if child == 0:
            code = 9
            try:
                code = _in_the_child(store)
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await good(store)
        assert server.connections == 1


def _in_the_child(store: ObjectStore) -> int:
    """Returns 0 if a read is refused and a close ends at once, without a running loop."""
    try:
        store.get(Get(_record("s3://bucket/o"), 0, 10), bytearray().extend).__await__().send(None)  # type: ignore[attr-defined]
    except StoreError as error:
        refused = "after a fork" in str(error)
    else:
        return 2
    try:
        store.aclose().__await__().send(None)  # type: ignore[attr-defined]
    except StopIteration:
        return 0 if refused else 3
    return 4


async def test_an_address_of_the_sixth_version() -> None:
    """An IPv6 address is reached as an endpoint of S3 and as a web server."""
    try:
        async with telling(host="::1") as server:
            root = f"http://[::1]:{server.port}"
            async with opened("s3://bucket", {**KEYS, "endpoint_url": root}) as store:
                assert await good(store)
            async with opened(root, {}) as store:
                assert await good(store, f"{root}/o")
    except OSError:
        pytest.skip("this machine has no ::1")
    assert [asked.path for asked in server.asked] == ["/bucket/o", "/o"]


@pytest.mark.parametrize(
    ("variables", "proxied"),
    [
        ({"http_proxy": "{}"}, True),
        ({"HTTP_PROXY": "{}"}, True),
        ({"ALL_PROXY": "{}"}, True),
        ({"HTTPS_PROXY": "{}"}, False),
        ({"HTTP_PROXY": "{}", "NO_PROXY": "127.0.0.1"}, False),
        ({"http_proxy": "{}", "no_proxy": "elsewhere,127.0.0.1"}, False),
    ],
)
@pytest.mark.parametrize("client", ["curl", "obstore"])
async def test_proxies_of_the_environment(
    variables: dict[str, str], proxied: bool, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies of the environment are used by libcurl as they are by obstore."""
    async with telling() as proxy, telling() as server:
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(f"http://user:word@127.0.0.1:{proxy.port}"))
        options = {**KEYS, "endpoint_url": f"http://127.0.0.1:{server.port}"}
        store = open_store("s3://bucket", options, client=client)  # type: ignore[arg-type]
        try:
            assert await good(store)
        finally:
            await store.aclose()
        assert (len(proxy.asked), len(server.asked)) == ((1, 0) if proxied else (0, 1))


# TLS


def _years_ago(years: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=365 * years)


@pytest.mark.parametrize("name", ["trusted", "of another name", "expired", "of another authority", "its own"])
async def test_certificates(name: str, authority: trustme.CA, tmp_path: Path) -> None:
    """A certificate of a private authority is accepted; others are refused with the reason before a request is sent."""
    certificate = {
        "trusted": lambda: authority.issue_cert("127.0.0.1"),
        "of another name": lambda: authority.issue_cert("elsewhere.example"),
        "expired": lambda: authority.issue_cert("127.0.0.1", not_before=_years_ago(3), not_after=_years_ago(2)),
        "of another authority": lambda: trustme.CA().issue_cert("127.0.0.1"),
        "its own": lambda: trustme.CA(organization_name="self").issue_cert("127.0.0.1"),
    }[name]()
    async with secure(authority, tmp_path, certificate) as (server, store):
        if name == "trusted":
            assert await good(store)
            return
        reason = "not valid" if name in ("of another name", "expired") else "not trusted"
        with pytest.raises(StoreError, match=f"certificate is {reason}"):
            await read(store, _record("s3://bucket/o"), 0, 10)
        assert server.asked == []


async def test_the_environment_names_authorities(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE names the trusted authorities where no option does."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with telling(_context(authority.issue_cert("127.0.0.1"))) as server:
        url = f"https://127.0.0.1:{server.port}"
        async with opened(url, {}) as store:
            with pytest.raises(StoreError, match="not trusted"):
                await read(store, _record(f"{url}/o"), 0, 10)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        async with opened(url, {}) as store:
            assert await good(store, f"{url}/o")


@pytest.mark.parametrize(("content", "text"), [("no certificate", "has no certificates"), (None, "cannot be read")])
async def test_a_file_of_authorities_that_is_none(content: str | None, text: str, tmp_path: Path) -> None:
    """A file of authorities that is missing or has no certificate is a ConfigError."""
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    options = {**KEYS, "endpoint_url": "https://127.0.0.1:1", "client_kwargs": {"verify": str(tmp_path / "ca.pem")}}
    async with opened("s3://bucket", options) as store:
        with pytest.raises(ConfigError, match=text) as caught:
            await read(store, _record("s3://bucket/o"), 0, 10)
        assert SECRET not in str(caught.value)


async def test_a_listing_of_other_folders_is_an_error() -> None:
    """A listing with objects outside the folder that was asked for is an error.

    A gateway may ignore the prefix: the objects of the whole bucket were samples.
    """
    entry = b"<Contents><Key>%b</Key><Size>3</Size><ETag>v</ETag></Contents>"
    page = b"<ListBucketResult>%b%b</ListBucketResult>" % (entry % b"train/0.jpg", entry % b"secret/0.jpg")
    async with bucket() as (server, store):
        server.says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
        with pytest.raises(
            StoreError, match=r"listing of s3://bucket/train/ has s3://bucket/secret/0.jpg, which is not"
        ):
            async for _ in store.list("s3://bucket/train/"):
                pass


@pytest.mark.parametrize("tokens", [["a", "a"], ["a", "b", "a"]])
async def test_a_listing_that_goes_in_circles_is_an_error(monkeypatch: pytest.MonkeyPatch, tokens: list[str]) -> None:
    """A listing whose continuation token comes again is an error, because it was cut off there or had no end."""
    pages = iter([ListedPage([_record(f"s3://bucket/{token}")], False, token) for token in tokens])
    monkeypatch.setattr(listing, "parse_page", lambda root, body: next(pages))
    async with bucket() as (server, store):
        server.says(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage")
        with pytest.raises(StoreError, match="continues where an earlier one did"):
            async for _ in store.list("s3://bucket/"):
                pass


async def test_a_listing_of_empty_pages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of many empty pages in a row is an error, because each names another one."""
    numbers = itertools.count()
    monkeypatch.setattr(curl_store, "_MAX_EMPTY_PAGES", 50)
    monkeypatch.setattr(listing, "parse_page", lambda root, body: ListedPage([], True, str(next(numbers))))
    async with bucket() as (server, store):
        server.says(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage")
        with pytest.raises(StoreError, match="51 pages in a row are empty"):
            async for _ in store.list("s3://bucket/"):
                pass


async def test_a_listing_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing without an end is given up before it fills the memory."""
    numbers = itertools.count()
    monkeypatch.setattr(fetcher, "_FEW_OBJECTS", 100)
    monkeypatch.setattr(fetcher, "usable_memory_bytes", lambda: 2 * 400 * 1000)

    def parse_page(root: str, body: bytes) -> ListedPage:
        number = next(numbers)
        return ListedPage([_record(f"s3://bucket/{number}-{each}") for each in range(10)], False, str(number))

    monkeypatch.setattr(listing, "parse_page", parse_page)
    async with bucket() as (server, store):
        server.says(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage")
        async with Fetcher(FetchConfig(), lambda root: store) as fetching:
            with pytest.raises(ConfigError, match="lists more than 1,010 objects, which take half"):
                await fetching.list("s3://bucket/")
