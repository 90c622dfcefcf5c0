"""AWS's S3 as hosts: every name below amazonaws.com, over TLS, behind a proxy that says which names were asked.

A request to a host of another region than the bucket's is answered as AWS documents it: "Request redirection and the
REST API" and "Error responses" (Amazon S3 user guide and API reference). Names that are asked for are written down
before anything is sent to them.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote

import trustme

from tests.serving import serving

BUCKET, REGION = "far-bucket", "eu-central-1"
_HEAD_END = b"\r\n\r\n"
_HOST_REGION = re.compile(r"\.s3(?:-fips)?(?:\.dualstack)?\.([a-z0-9-]+)\.amazonaws\.")
# By the behaviour of a wrong region's host: status, code, what is in the body besides.
ELSEWHERE = {
    "301": (301, "PermanentRedirect", f"<Endpoint>{BUCKET}.s3.{REGION}.amazonaws.com</Endpoint>"),
    "307": (307, "TemporaryRedirect", f"<Endpoint>{BUCKET}.s3.{REGION}.amazonaws.com</Endpoint>"),
    "400": (400, "AuthorizationHeaderMalformed", f"<Region>{REGION}</Region>"),
    "400 of an opt-in region": (400, "IllegalLocationConstraintException", ""),
}


@dataclass
class AwsHosts:
    """What the hosts have, and what they were asked.

    Attributes:
        objects: of the bucket, by key.
        behaviour: of a host of another region, one of ELSEWHERE.
        page_keys: keys of a page of a listing.
        names: asked of the proxy, in order.
        requests: method, host and target of each request.
        lines: the header lines of each request.
    """

    objects: Mapping[str, bytes]
    behaviour: str = "301"
    page_keys: int = 1000
    names: list[str] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    lines: list[dict[str, str]] = field(default_factory=list)
    proxy: str = ""

    def answer(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        """To one request."""
        host, region = headers["host"], REGION
        if found := _HOST_REGION.search(host):
            region = found[1]
        elif host.endswith(".s3.amazonaws.com"):
            region = "us-east-1"
        signed = re.search(r"Credential=[^/]+/\d+/([^/]+)/s3/", headers.get("authorization", ""))
        if region != REGION or (signed is not None and signed[1] != REGION):
            return self._elsewhere(method)
        if method == "PUT":
            return 200, {"ETag": '"x"'}, b""
        path, _, query = target.partition("?")
        if "list-type=2" in query:
            return self._listing(parse_qs(query))
        return self._object(method, unquote(path[1:]), headers)

    def _elsewhere(self, method: str) -> tuple[int, dict[str, str], bytes]:
        status, code, more = ELSEWHERE[self.behaviour]
        headers = {"Content-Type": "application/xml"}
        if method == "HEAD" or self.behaviour == "301":
            headers["x-amz-bucket-region"] = REGION
        if status == 307:
            headers["Location"] = f"https://{BUCKET}.s3.{REGION}.amazonaws.com/"
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>m</Message>{more}</Error>'
        return status, headers, b"" if method == "HEAD" else body.encode()

    def _listing(self, asked: Mapping[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        prefix, after = asked.get("prefix", [""])[0], asked.get("start-after", [""])[0]
        after = unquote(asked["continuation-token"][0]) if "continuation-token" in asked else after
        assert asked["encoding-type"] == ["url"]
        keys = sorted((key for key in self.objects if key.startswith(prefix) and key > after), key=str.encode)
        entries = "".join(
            f"<Contents><Key>{quote(key, safe='/').replace('%20', '+')}</Key><LastModified>2026-01-01T00:00:00.000Z"
            f"</LastModified><ETag>&quot;x&quot;</ETag><Size>{len(self.objects[key])}</Size></Contents>"
            for key in keys[: self.page_keys]
        )
        more = len(keys) > self.page_keys
        token = f"<NextContinuationToken>{quote(keys[self.page_keys - 1])}</NextContinuationToken>" if more else ""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}"
            "</ListBucketResult>"
        )
        return 200, {}, body.encode()

    def _object(self, method: str, key: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        if method == "HEAD" and not key:
            return 200, {"x-amz-bucket-region": REGION}, b""
        if key not in self.objects:
            return 404, {}, b"" if method == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>"
        content = self.objects[key]
        if method == "HEAD":
            return 200, {"ETag": '"x"', "Content-Length": str(len(content))}, b""
        start, stop = (int(part) for part in headers["range"].removeprefix("bytes=").split("-"))
        place = f"bytes {start}-{stop}/{len(content)}"
        return 206, {"ETag": '"x"', "Content-Range": place}, content[start : stop + 1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of TLS."""
        while True:
            first, *rest = (await reader.readuntil(_HEAD_END)).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
            method, target, _ = first.split(" ")
            await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append((method, headers["host"], target))
            self.lines.append(headers)
            status, answered, body = self.answer(method, target, headers)
            answered = {"Content-Length": str(len(body)), **answered}
            head = "".join(f"{name}: {value}\r\n" for name, value in answered.items())
            writer.write(f"HTTP/1.1 {status} S\r\n{head}\r\n".encode("latin-1") + body)
            await writer.drain()


@asynccontextmanager
async def aws_hosts(objects: Mapping[str, bytes], folder: Path, **more: object) -> AsyncIterator[AwsHosts]:
    """The hosts; `ca.pem` in the folder is their authority's, which no system trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    names = [f"*.s3{kind}{region}.amazonaws.com" for kind in ("", "-fips", ".dualstack") for region in _REGIONS]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, "*.cwobject.test").configure_cert(context)
    hosts = AwsHosts(objects, **more)  # type: ignore[arg-type]
    async with serving(hosts.serve, context) as port:

        async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first = (await reader.readuntil(_HEAD_END)).split(b" ")
            assert first[0] == b"CONNECT"
            hosts.names.append(first[1].decode())
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
            finally:
                far_writer.transport.abort()

        async with serving(tunnel) as proxy_port:
            hosts.proxy = f"http://127.0.0.1:{proxy_port}"
            yield hosts


_REGIONS = ("", ".us-east-1", ".eu-central-1", ".us-west-2")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while content := await reader.read(1 << 16):
            writer.write(content)
            await writer.drain()
    writer.close()
