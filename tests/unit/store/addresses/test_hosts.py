"""The host that a client connects to is the cloud's, whatever urls and options say; real clients use a proxy."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
from collections.abc import Iterator

import obstore
import obstore.store
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.errors import AccessDeniedError, ConfigError, StreamerError
from streamer.store import guard, open_store
from streamer.store.addresses.hosts import is_of_aws, is_of_azure
from streamer.store.root import StoreRoot

SUFFIXES = {
    "s3": (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu"),
    "gs": ("storage.googleapis.com",),
    "az": (".core.windows.net", ".core.usgovcloudapi.net", ".core.chinacloudapi.cn", ".fabric.microsoft.com"),
}
KEYS = {
    "s3": {"key": "AKIA", "secret": "S"},
    "gs": {"token": "anon"},
    "az": {"account_name": "account", "account_key": base64.b64encode(b"k").decode()},
}
EVIL = st.one_of(
    st.sampled_from(
        [
            *("evil.example", "evil.example/", "evil.example#", "x@evil.example:443/#", "evil.example:443?", "..", "."),
            *(
                "evil.example\\",
                "evil.example%2f",
                "a b",
                "a\tb",
                "a\nb",
                "\u3002",
                "a\u2044b",
                "[::1]",
                "127.0.0.1:9/",
            ),
            *(
                "EVIL",
                "a" * 300,
                "-",
                "",
                "account",
                "bucket",
                "eu-west-1",
                "cn-north-1",
                "us-gov-west-1",
                "core.windows.net",
            ),
        ]
    ),
    st.text(st.sampled_from("ab1.-_#@:/?%\\[] $&=;\x00\u3002"), max_size=12),
)


class Proxy:
    """Stands for the proxy of all clients: it notes the hosts that are asked for, and refuses each with 403."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                first = connection.recv(4096).partition(b"\r\n")[0].decode("latin-1")
                if first == "END":
                    return
                self.asked.append(first)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def hosts(self) -> list[str]:
        """The hosts of the requests since the last call; a request of plain http has its host in the url."""
        found = [line.split(" ")[1] for line in self.asked]
        self.asked.clear()
        return [one.partition("://")[2].partition("/")[0] if "://" in one else one for one in found]

    def close(self) -> None:
        with socket.create_connection(self._socket.getsockname()) as last:
            last.sendall(b"END")
        self._thread.join()
        self._socket.close()


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """A proxy for all tests of the module, made after obstore's runtime has started."""

    async def start_obstore() -> None:
        await obstore.put_async(obstore.store.MemoryStore(), "a", b"")

    # Its runtime stays until the process ends, with three descriptors.
    asyncio.run(start_obstore())
    made = Proxy()
    yield made
    made.close()


@pytest.fixture
def behind(proxy, monkeypatch, tmp_path) -> Proxy:
    """Sends all clients through the proxy, without exceptions, profiles or endpoints of the environment."""
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    for name in ("NO_PROXY", "no_proxy", "AWS_ENDPOINT_URL", "AWS_PROFILE", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return proxy


def reached(proxy: Proxy, url: str, options: dict[str, object]) -> list[str]:
    """Returns the hosts to which a listing connects; there are none if it is refused before."""

    async def first_page() -> None:
        with contextlib.suppress(StreamerError):
            store = open_store(url, options, refuse_local=True)
            async for _ in store.list(url):
                return

    asyncio.run(asyncio.wait_for(first_page(), 20))
    return proxy.hosts()


def check(proxy: Proxy, kind: str, url: str, options: dict[str, object]) -> None:
    """Asserts that a listing connects to no host but those of the cloud, on port 443."""
    for host in reached(proxy, url, options):
        name, _, port = host.partition(":")
        assert port in ("", "443"), (host, url, options)
        assert name.endswith(SUFFIXES[kind]), (host, url, options)
        assert all(part.isascii() and part for part in name.split(".")), (host, url, options)


FUZZ = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "url", "host"),
    [
        ("s3", "s3://bucket/x/", "bucket.s3.eu-west-1.amazonaws.com"),
        ("gs", "gs://bucket/x/", "storage.googleapis.com"),
        ("az", "az://container/x/", "account.blob.core.windows.net"),
        ("az", "abfs://c@account.dfs.core.chinacloudapi.cn/x/", "account.blob.core.chinacloudapi.cn"),
        ("az", "abfs://c@account.dfs.core.usgovcloudapi.net/x/", "account.blob.core.usgovcloudapi.net"),
        ("az", "abfss://workspace@onelake.dfs.fabric.microsoft.com/a/x/", "onelake.blob.fabric.microsoft.com"),
    ],
)
def test_clouds_are_reached(behind, kind, url, host):
    """Urls of S3, Google and each of Azure's clouds connect to that cloud's own host."""
    options = {**KEYS[kind], **({"client_kwargs": {"region_name": "eu-west-1"}} if kind == "s3" else {})}
    if "@" in url:
        options.pop("account_name")
    assert {one.partition(":")[0] for one in reached(behind, url, options)} == {host}


@pytest.mark.process
@FUZZ
@given(bucket=EVIL, region=EVIL)
def test_strings_of_s3(behind, bucket, region):
    """Bucket and region of S3, in the url, client_kwargs or config_kwargs, lead to no host outside AWS."""
    check(behind, "s3", f"s3://{bucket}/x/", {**KEYS["s3"], "client_kwargs": {"region_name": "eu-west-1"}})
    check(behind, "s3", "s3://bucket/x/", {**KEYS["s3"], "client_kwargs": {"region_name": region}})
    check(behind, "s3", "s3://bucket/x/", {**KEYS["s3"], "config_kwargs": {"region_name": f"eu-{region}"}})


@pytest.mark.process
@FUZZ
@given(bucket=EVIL, text=EVIL)
def test_strings_of_google(behind, bucket, text):
    """Bucket, endpoint and the fields of a service account's key lead to no host outside Google's storage."""
    check(behind, "gs", f"gs://{bucket}/x/", KEYS["gs"])
    check(behind, "gs", "gs://bucket/x/", {**KEYS["gs"], "endpoint_url": f"https://{text}"})
    for name in ("gcs_base_url", "token_uri", "project_id", "universe_domain"):
        token = {"type": "service_account", "private_key": "k", "client_email": "e", "private_key_id": "1", name: text}
        check(behind, "gs", "gs://bucket/x/", {"token": {**token, "disable_oauth": True}})
        check(behind, "gs", "gs://bucket/x/", {"token": token})


@pytest.mark.process
@FUZZ
@given(text=EVIL)
def test_strings_of_azure(behind, text):
    """Container, account, host and all parts of a connection string lead to no host outside Azure's storage."""
    key = KEYS["az"]["account_key"]
    secret = {"account_key": key}
    check(behind, "az", f"az://{text}/x/", KEYS["az"])
    check(behind, "az", "az://container/x/", {**secret, "account_name": text})
    check(behind, "az", "az://container/x/", {**KEYS["az"], "account_host": text})
    for host in (
        text,
        f"{text}.dfs.core.windows.net",
        f"{text}.fabric.microsoft.com",
        f"account.{text}.core.windows.net",
    ):
        check(behind, "az", f"abfs://container@{host}/x/", secret)
    for part in ("AccountName", "EndpointSuffix", "BlobEndpoint"):
        parts = {"AccountName": "account", "AccountKey": key, part: text}
        connection = ";".join(f"{name}={value}" for name, value in parts.items())
        check(behind, "az", "az://container/x/", {"connection_string": connection})


@pytest.mark.parametrize(
    ("url", "options", "what"),
    [
        ("az://c/", {"account_name": "evil.example/"}, "storage account 'evil.example/'"),
        ("az://c/", {"account_name": "account", "tenant_id": "../x"}, "tenant_id"),
        ("abfs://c@evil.example#.fabric.microsoft.com/", {}, "host 'evil.example#.fabric.microsoft.com'"),
        ("s3://b", {"client_kwargs": {"region_name": "x@h/#"}}, "region"),
        ("s3://127.0.0.1:80#/x", {}, "bucket"),
        ("gs://a b/", {}, "bucket"),
        ("gs://b/", {"token": {"type": "service_account", "gcs_base_url": "https://h"}}, "gcs_base_url"),
    ],
)
@pytest.mark.parametrize("refuse_local", [False, True])
def test_names_follow_the_grammar_of_their_cloud(url, options, what, refuse_local):
    """A name that breaks the grammar of its cloud is refused in every engine, by an error that says which one."""
    with pytest.raises(ConfigError, match=what.replace(".", r"\.")):
        open_store(url, options, refuse_local=refuse_local)


def test_a_login_before_a_bucket_is_not_shown():
    """The login in an S3 url is not shown by the error about its bucket, because errors are logged."""
    with pytest.raises(ConfigError) as caught:
        open_store("s3://user:hunter2@bucket@x/", {})
    assert "hunter2" not in str(caught.value)


def test_a_region_of_the_environment_is_checked(monkeypatch):
    """A region from the environment is checked as one from options is, because it becomes a part of the host's name."""
    monkeypatch.setitem(__import__("sys").modules, "botocore.session", None)
    monkeypatch.setenv("AWS_REGION", "x@evil.example/#")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with pytest.raises(ConfigError, match="no region of AWS"):
        StoreRoot.resolve("s3://bucket").find_place(None)


@pytest.mark.parametrize(
    ("url", "of_aws", "of_azure"),
    [
        ("https://b.s3.eu-west-1.amazonaws.com/", True, False),
        ("https://s3.cn-north-1.amazonaws.com.cn/b/", True, False),
        ("https://a.blob.core.windows.net/", False, True),
        ("https://evil.example/.amazonaws.com", False, False),
        ("https://evilamazonaws.com/", False, False),
        ("https://x@b.s3.amazonaws.com/", False, False),
        ("http://a.blob.core.windows.net/", False, False),
        ("https://a.blob.core.windows.net:8443/", False, False),
        ("https://evil.example#.core.windows.net/", False, False),
        ("https://a.blob.core.windows.net.evil.example/", False, False),
    ],
)
def test_addresses_end_with_the_suffix_of_a_cloud(url, of_aws, of_azure):
    """The address of a cloud is https, has the cloud's suffix at the end of its host, and has no login or port."""
    assert (is_of_aws(url), is_of_azure(url)) == (of_aws, of_azure)


@pytest.mark.parametrize(
    "host",
    [
        *("64:ff9b::7f00:1", "64:ff9b:1::a9fe:a9fe", "::ffff:127.0.0.1", "2002:7f00:1::", "::127.0.0.1", "127.1.2.3"),
        # SIIT; a prefix of 48, 56 and 64 bits before 169.254.169.254 and 127.0.0.1.
        *("::ffff:0:7f00:1", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:7f:0:100::", "64:ff9b:1:0:7f:0:100:0"),
    ],
)
def test_translated_addresses_are_this_machine(host):
    """NAT64, SIIT, 6to4, mapped and compatible addresses of this machine are refused as its plain ones are."""
    assert guard.is_own(host)
    assert not guard.is_own("64:ff9b::808:808")
    assert not guard.is_own("64:ff9b:1::808:808")
    assert not guard.is_own("64:ff9b:1:808:8:800::")
    with pytest.raises(AccessDeniedError):
        open_store(
            "s3://b",
            {"key": "A", "secret": "S", "endpoint_url": f"http://{f'[{host}]' if ':' in host else host}:1"},
            refuse_local=True,
        )


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("s3://b", {}, ""),
        ("s3://b", {"key": "A", "secret": "S"}, ""),
        ("s3://b", {"endpoint_url": "http://u:p@Host:1/x/"}, "endpoint http://host:1/x"),
        ("s3://b", {"client_kwargs": {"endpoint_url": "http://h"}}, "endpoint http://h"),
        ("s3://b", {"client_kwargs": {"region_name": "eu-west-1"}}, ""),
        ("s3://b", {"client_kwargs": {"region_name": "cn-north-1"}}, "partition cn-"),
        ("s3://b", {"profile": "p"}, "profile p"),
        ("az://c", {"account_name": "theirs"}, "account theirs"),
        ("az://c", {"account_name": "mine"}, ""),
        ("abfs://c@acct.dfs.core.windows.net/x", {"sas_token": "s"}, ""),
        ("gs://b", {"endpoint_url": "http://h"}, "endpoint http://h"),
        ("https://h/x", {"headers": {"a": "b"}}, ""),
        ("https://h/x", {"headers": {"hOST": "Other.example"}}, "host other.example"),
        ("https://h/x", {"client_kwargs": {"headers": {"Host": "o"}}}, "host o"),
        ("/data", {}, ""),
    ],
)
def test_the_place_that_options_name(url, options, named):
    """The endpoint, profile, account or host that storage options name beyond the url is described without logins."""
    variables = {"AZURE_STORAGE_ACCOUNT": "mine", "AWS_REGION": "eu-central-1"}
    assert StoreRoot.resolve(url, options).describe_chosen_endpoint(variables) == named
