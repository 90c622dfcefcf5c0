"""Where buckets are: regions, partitions and styles of addresses, with a server that stands for AWS's hosts."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamer.errors import ConfigError, StoreError
from streamer.manifest.model import ObjectRecord
from streamer.store import Client, open_store
from streamer.store.addresses.urls import split
from streamer.store.places import BucketPlace
from streamer.store.root import StoreRoot
from tests.clouds.aws_hosts import BUCKET, ELSEWHERE, REGION, AwsHosts, aws_hosts
from tests.contract.store_contract import listed, read

pytestmark = pytest.mark.usefixtures("warm_runtime")

ROOT, KEYS = f"s3://{BUCKET}", {"key": "AKIAEXAMPLE", "secret": "s"}
# What obstore refuses to list: an empty segment, "..", control characters; and what must be escaped.
ODD = ("a//b", "/leading", "a/./b", "a/../b", "a\tb", "a\x01b", "a b+c", "ü%2F", "&<>\"'", "e\u0301")
CONTENTS = {f"train/{key}": f"content of {key}".encode() for key in ODD} | {"train/": b"", "train/c/": b""}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes what the environment and the user's files say of AWS and of proxies."""
    for name in [*os.environ]:
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
async def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AwsHosts]:
    """The hosts of AWS, whose certificates only AWS_CA_BUNDLE trusts."""
    async with aws_hosts(CONTENTS, tmp_path) as hosts:
        monkeypatch.setenv("HTTPS_PROXY", hosts.proxy)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        yield hosts


@pytest.mark.parametrize("options", [KEYS, {"anon": True}], ids=["keys", "anonymous"])
@pytest.mark.parametrize("behaviour", ELSEWHERE)
async def test_a_bucket_in_another_region(
    behaviour: str, options: dict[str, object], hosts: AwsHosts, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket in another region is found by what AWS answers, logged once, and asked there from then on."""
    hosts.behaviour = behaviour
    caplog.set_level(logging.WARNING, "streamer")
    store = open_store(ROOT, options)
    try:
        assert len(await listed(store, f"{ROOT}/train/")) == len(ODD)
        first = len(hosts.requests)
        assert await read(store, ObjectRecord(f"{ROOT}/train/a//b", 15, "etag:x"), 0, 15) == b"content of a//b"
        assert list(await listed(store, f"{ROOT}/train/a//b")) == [f"{ROOT}/train/a//b"]
    finally:
        await store.aclose()
    right = f"{BUCKET}.s3.{REGION}.amazonaws.com"
    assert set(hosts.names) == {f"{BUCKET}.s3.amazonaws.com:443", f"{right}:443"}
    assert {host for _, host, _ in hosts.requests[first:]} == {right}
    assert first <= 3  # the wrong host once or, where it does not say the region, twice
    assert [record.getMessage() for record in caplog.records] == [
        f"{ROOT} is in the region {REGION}, not in us-east-1; client_kwargs={{'region_name': '{REGION}'}} in "
        "storage_options says so at once"
    ]


async def test_a_read_finds_the_region_as_well(hosts: AwsHosts) -> None:
    """Eight reads at once without a listing find the region of the bucket, as with a stored manifest."""
    store = open_store(ROOT, KEYS)
    record = ObjectRecord(f"{ROOT}/train/a//b", 15, "etag:x")
    try:
        found = await asyncio.gather(*(read(store, record, 0, 15) for _ in range(8)))
    finally:
        await store.aclose()
    assert found == [b"content of a//b"] * 8


@pytest.mark.parametrize("behaviour", ELSEWHERE)
async def test_obstore_finds_the_region(behaviour: str, hosts: AwsHosts, caplog: pytest.LogCaptureFixture) -> None:
    """With obstore the region is asked for before the first request; no signed request goes to a wrong host."""
    hosts.behaviour = behaviour
    caplog.set_level(logging.WARNING, "streamer")
    store = open_store(ROOT, KEYS, client="obstore")
    record = ObjectRecord(f"{ROOT}/train/a b+c", 16, "etag:x")
    try:
        found = await asyncio.gather(*(read(store, record, 0, 16) for _ in range(4)))
    finally:
        await store.aclose()
    assert found == [b"content of a b+c"] * 4
    signed = {host for (_, host, _), lines in zip(hosts.requests, hosts.lines, strict=True) if "authorization" in lines}
    assert signed == {f"{BUCKET}.s3.{REGION}.amazonaws.com"}
    assert len([None for method, *_ in hosts.requests if method == "HEAD"]) <= 2
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        f"{ROOT} is in the region {REGION}, not in us-east-1"
    ]


@pytest.mark.parametrize("client", ["curl", "obstore"])
async def test_what_is_written_first_finds_the_region(client: Client, hosts: AwsHosts) -> None:
    """A put that is the first request to a bucket finds its region."""
    store = open_store(ROOT, KEYS, client=client)
    try:
        await store.put(f"{ROOT}/new", b"content")
    finally:
        await store.aclose()
    assert [host for method, host, _ in hosts.requests if method == "PUT"] == [f"{BUCKET}.s3.{REGION}.amazonaws.com"]


async def test_no_keys_go_to_another_partition(hosts: AwsHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that names a region of another partition is an error, and no keys are sent to that partition."""
    monkeypatch.setitem(ELSEWHERE, "400", (400, "AuthorizationHeaderMalformed", "<Region>cn-north-1</Region>"))
    hosts.behaviour = "400"
    store = open_store(ROOT, KEYS)
    try:
        with pytest.raises(StoreError, match="400 AuthorizationHeaderMalformed"):
            await listed(store, f"{ROOT}/train/")
    finally:
        await store.aclose()
    assert {name.partition(":")[0] for name in hosts.names} == {f"{BUCKET}.s3.amazonaws.com"}


async def test_a_listing_takes_every_key(hosts: AwsHosts) -> None:
    """A listing has every key in pages, also those that are no path, and each key that is listed can be read."""
    hosts.page_keys = 3
    store = open_store(ROOT, {**KEYS, "client_kwargs": {"region_name": REGION}})
    try:
        found = await listed(store, f"{ROOT}/train/")
        assert sorted(found) == sorted(f"{ROOT}/train/{key}" for key in ODD)
        for record in found.values():
            content = CONTENTS[record.url.removeprefix(f"{ROOT}/")]
            assert await read(store, record, 0, record.size) == content
        behind = [record async for page in store.list_after(f"{ROOT}/train/", f"{ROOT}/train/a b+c") for record in page]
        assert [record.url for record in behind] == sorted(url for url in found if url > f"{ROOT}/train/a b+c")
    finally:
        await store.aclose()
    assert set(hosts.names) == {f"{BUCKET}.s3.{REGION}.amazonaws.com:443"}


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>sign in</body></html>",
        b"not XML",
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>x</Key></Contents></ListBucketResult>",
    ],
)
async def test_what_is_no_listing(body: bytes, hosts: AwsHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is no listing of S3 is a ConfigError that names endpoint_url."""
    monkeypatch.setattr(hosts, "_listing", lambda asked: (200, {}, body))
    store = open_store(ROOT, {**KEYS, "client_kwargs": {"region_name": REGION}})
    try:
        with pytest.raises(ConfigError, match=r"not a listing of S3.*endpoint_url"):
            await listed(store, f"{ROOT}/train/")
    finally:
        await store.aclose()


def _place(url: str = "s3://bucket/x", **options: object) -> BucketPlace:
    """Returns the place of a bucket with these options."""
    return StoreRoot.resolve(url, options).find_place(None)


_PLACES: list[tuple[dict[str, str], dict[str, object], str]] = [
    ({}, {}, "https://bucket.s3.amazonaws.com/"),
    ({"AWS_REGION": "eu-west-3"}, {}, "https://bucket.s3.eu-west-3.amazonaws.com/"),
    ({"AWS_DEFAULT_REGION": "cn-north-1"}, {}, "https://bucket.s3.cn-north-1.amazonaws.com.cn/"),
    ({"AWS_DEFAULT_REGION": "eusc-de-east-1"}, {}, "https://bucket.s3.eusc-de-east-1.amazonaws.eu/"),
    ({"AWS_DEFAULT_REGION": "us-gov-west-1"}, {}, "https://bucket.s3.us-gov-west-1.amazonaws.com/"),
    (
        {"AWS_DEFAULT_REGION": "us-east-2", "AWS_USE_FIPS_ENDPOINT": "true"},
        {},
        "https://bucket.s3-fips.us-east-2.amazonaws.com/",
    ),
    (
        {"AWS_DEFAULT_REGION": "us-east-2", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
        {},
        "https://bucket.s3.dualstack.us-east-2.amazonaws.com/",
    ),
    (
        {"AWS_DEFAULT_REGION": "us-east-2"},
        {"config_kwargs": {"use_fips_endpoint": True, "s3": {"use_dualstack_endpoint": True}}},
        "https://bucket.s3-fips.dualstack.us-east-2.amazonaws.com/",
    ),
    (
        {"AWS_DEFAULT_REGION": "us-east-2"},
        {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}},
        "https://bucket.s3-accelerate.amazonaws.com/",
    ),
    ({}, {"endpoint_url": "http://127.0.0.1:9000/s3/"}, "http://127.0.0.1:9000/s3/bucket/"),
    ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}, {}, "http://127.0.0.1:9000/bucket/"),
    (
        {},
        {"endpoint_url": "https://cwobject.com", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
        "https://bucket.cwobject.com/",
    ),
    (
        {},
        {**KEYS, "endpoint_url": "https://cwobject.com", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
        "https://bucket.cwobject.com/",
    ),
]


@pytest.mark.parametrize(("variables", "options", "base"), _PLACES)
def test_the_address_of_a_bucket(
    variables: dict[str, str], options: dict[str, object], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of a bucket follows partition, FIPS, dual stack, acceleration, endpoint and address style."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _place(**options).base == base


@pytest.mark.parametrize(
    ("url", "base", "region"),
    [
        ("s3://bu.cket/x", "https://s3.us-west-1.amazonaws.com/bu.cket/", "us-west-1"),
        ("s3://alias-abc-s3alias/x", "https://alias-abc-s3alias.s3.us-west-1.amazonaws.com/", "us-west-1"),
        (
            "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/point/x",
            "https://point-123456789012.s3-accesspoint.us-west-2.amazonaws.com/",
            "us-west-2",
        ),
    ],
)
def test_buckets_of_other_kinds(url: str, base: str, region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket with dots in its name, the alias of an access point and its ARN have addresses of their own."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-1")
    assert _place(url) == BucketPlace(base, region)
    assert split(url).key == "x"


def test_a_profile_says_where(tmp_path: Path) -> None:
    """A profile gives endpoint_url, [services], address style, region and authority, as for R2, MinIO, CoreWeave."""
    (tmp_path / "config").write_text(
        "[profile plain]\nendpoint_url = http://127.0.0.1:9000\nregion = auto\nca_bundle = /ca.pem\n"
        "[profile services]\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = https://cwobject.com\n"
        "[profile virtual]\nendpoint_url = https://cwobject.com\ns3 =\n  addressing_style = virtual\n"
    )
    assert _place(profile="plain") == BucketPlace("http://127.0.0.1:9000/bucket/", "auto", "/ca.pem")
    assert _place(profile="services").base == "https://cwobject.com/bucket/"
    assert _place(profile="virtual").base == "https://bucket.cwobject.com/"


@pytest.mark.parametrize(
    ("variables", "options", "base"), [row for row in _PLACES if not {*row[0]} & {"AWS_USE_FIPS_ENDPOINT"}]
)
def test_without_botocore(
    variables: dict[str, str], options: dict[str, object], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without botocore a bucket has the same address, or a refusal that says what to install."""
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if "AWS_USE_DUALSTACK_ENDPOINT" in variables or {"use_fips_endpoint", "s3"} <= {*options.get("config_kwargs", {})}:  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match=r"needs botocore; pip install 'streamer-data\[aws\]'"):
            _place(**options)
    elif "use_accelerate_endpoint" in str(options):
        with pytest.raises(ConfigError, match="needs botocore"):
            _place(**options)
    else:
        assert _place(**options).base.replace("s3.us-east-1.", "s3.") == base
