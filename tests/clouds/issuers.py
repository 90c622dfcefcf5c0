"""Issuers of AWS keys that expire, and the gate of a store that takes those keys only.

Each answers as its provider documents it:

* instance role: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html, with a
  session token: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
* container (ECS): https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-iam-roles.html
* Pod Identity (EKS): https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
* AssumeRole and AssumeRoleWithWebIdentity (IRSA): https://docs.aws.amazon.com/STS/latest/APIReference/
* credential_process: https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html
* sign-in (SSO): https://docs.aws.amazon.com/singlesignon/latest/PortalAPIReference/API_GetRoleCredentials.html
"""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

POD_TOKEN = "token-of-the-pod"
SESSION_TOKEN = "token-of-the-session"
SIGN_IN_TOKEN = "token-of-the-sign-in"
ARN = "arn:aws:sts::123456789012:assumed-role/reader/session"
START_URL = "https://example.awsapps.com/start"
_HOP_HEADERS = ("connection", "transfer-encoding", "host", "content-length")


@dataclass
class Issuer:
    """Gives out keys, and lets requests pass that are signed with keys that are still good.

    Attributes:
        url: of the issuer, and of the gate before the store.
        seconds: lifetime of the keys, as the issuer states it.
        issued: how many keys were given out.
        refuses: an error code with which every issuer answers; None: they give keys.
        status: what every issuer answers instead, as one that is not well; 200: they work.
        well: cleared while no issuer answers at all.
        store: the url of the store behind the gate.
    """

    store: str
    seconds: float = 60.0
    url: str = ""
    issued: int = 0
    refuses: str | None = None
    status: int = 200
    well: threading.Event = field(default_factory=threading.Event)
    _good: set[tuple[str, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def issue(self) -> tuple[str, str, str, datetime]:
        """Returns new keys: id, secret, token, end. The earlier ones stay good."""
        with self._lock:
            self.issued += 1
            key, token = f"ASIA{self.issued:016}", f"token-{self.issued}"
            self._good.add((key, token))
        return key, "secret", token, datetime.now(UTC) + timedelta(seconds=self.seconds)

    def revoke(self) -> None:
        """Ends all keys that were given out."""
        with self._lock:
            self._good.clear()

    def takes(self, headers: Mapping[str, str]) -> bool:
        """Whether a request is signed with good keys."""
        found = re.search(r"Credential=(\w+)/", headers.get("Authorization", ""))
        return found is not None and (found[1], headers.get("x-amz-security-token", "")) in self._good


@contextmanager
def issuing(store: str, seconds: float = 60.0) -> Iterator[Issuer]:
    """An issuer and a gate before the store at the url `store`, in threads of this process."""
    issuer = Issuer(store, seconds)
    handler = type("Handler", (_Handler,), {"issuer": issuer})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = False
    issuer.well.set()
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="issuer", kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield issuer
    finally:
        issuer.well.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One request per connection, so that no thread waits for another request."""

    issuer: Issuer
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        if self.path == "/latest/api/token":
            if self._works():
                self._answer(200, SESSION_TOKEN)
        else:
            self._store()

    def do_HEAD(self) -> None:
        self._store()

    def do_POST(self) -> None:
        if self.path != "/":
            return self._store()
        asked = parse_qs(self._body().decode())
        return self._assume(asked["Action"][0]) if self._works() else None

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        for prefix, method in _ISSUERS.items():
            if parts.path.startswith(prefix):
                return method(self) if self._works() else None
        return self._store()

    def _works(self) -> bool:
        """Waits while no issuer answers; False: it has answered that it is not well."""
        self.issuer.well.wait()
        if self.issuer.status != 200:
            self._answer(self.issuer.status, "{}")
        return self.issuer.status == 200

    def _instance(self) -> None:
        if self.headers.get("x-aws-ec2-metadata-token") != SESSION_TOKEN:
            self._answer(401, "")
        elif self.path.endswith("/security-credentials/"):
            self._answer(200, "role-of-the-instance")
        elif self.issuer.refuses:
            self._answer(200, json.dumps({"Code": self.issuer.refuses, "Message": "refused"}))
        else:
            self._answer(200, json.dumps({"Code": "Success", "Type": "AWS-HMAC", **self._keys("Token")}))

    def _container(self) -> None:
        if self.issuer.refuses:
            self._answer(403, json.dumps({"code": self.issuer.refuses, "message": "refused"}))
        else:
            self._answer(200, json.dumps({"RoleArn": "arn:aws:iam::123456789012:role/reader", **self._keys("Token")}))

    def _pod(self) -> None:
        if self.headers.get("Authorization") == POD_TOKEN:
            self._container()
        else:
            self._answer(401, "")

    def _process(self) -> None:
        if self.issuer.refuses:
            self._answer(500, "")
        else:
            self._answer(200, json.dumps({"Version": 1, **self._keys("SessionToken")}))

    def _sign_in(self) -> None:
        if self.issuer.refuses or self.headers.get("x-amz-sso_bearer_token") != SIGN_IN_TOKEN:
            refusal = {"__type": self.issuer.refuses or "UnauthorizedException", "message": "Session token not found"}
            self._answer(401, json.dumps(refusal))
            return
        key, secret, token, end = self.issuer.issue()
        keys = {"accessKeyId": key, "secretAccessKey": secret, "sessionToken": token}
        self._answer(200, json.dumps({"roleCredentials": {**keys, "expiration": int(end.timestamp() * 1000)}}))

    def _assume(self, action: str) -> None:
        if self.issuer.refuses:
            error = f"<Error><Type>Sender</Type><Code>{self.issuer.refuses}</Code><Message>refused</Message></Error>"
            return self._answer(403, f"<ErrorResponse>{error}</ErrorResponse>", "text/xml")
        if action == "GetCallerIdentity":
            return self._answer(
                200,
                f"<{action}Response><{action}Result><Arn>{ARN}</Arn></{action}Result></{action}Response>",
                "text/xml",
            )
        keys = "".join(f"<{name}>{value}</{name}>" for name, value in self._keys("SessionToken").items())
        result = f"<{action}Result><Credentials>{keys}</Credentials></{action}Result>"
        return self._answer(200, f"<{action}Response>{result}</{action}Response>", "text/xml")

    def _keys(self, token_name: str) -> dict[str, str]:
        key, secret, token, end = self.issuer.issue()
        stamp = end.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"AccessKeyId": key, "SecretAccessKey": secret, token_name: token, "Expiration": stamp}

    def _store(self) -> None:
        """Passes the request on to the store, which gives the answer."""
        body = self._body()
        if not self.issuer.takes(self.headers):
            error = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
            self._answer(400, error, "application/xml")
            return
        connection = http.client.HTTPConnection(urlsplit(self.issuer.store).netloc)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._finish(content, length)
        connection.close()

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self._finish(text.encode())

    def _finish(self, content: bytes, length: str | None = None) -> None:
        self.send_header("Content-Length", length or str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """The tests read no log of requests."""


_ISSUERS: dict[str, Callable[[_Handler], None]] = {
    "/latest/meta-data/iam/security-credentials/": _Handler._instance,
    "/v2/credentials/": _Handler._container,
    "/v1/credentials": _Handler._pod,
    "/process": _Handler._process,
    "/federation/credentials": _Handler._sign_in,
}

Setup = Callable[[Issuer, Path, pytest.MonkeyPatch], None]


def _profile(folder: Path, patch: pytest.MonkeyPatch, **settings: str) -> None:
    lines = itertools.chain(["[default]"], (f"{name} = {value}" for name, value in settings.items()))
    path = folder / "config"
    path.write_text("\n".join([*lines, "[profile base]", "aws_access_key_id = k", "aws_secret_access_key = s", ""]))
    patch.setenv("AWS_CONFIG_FILE", str(path))


def _instance_role(issuer: Issuer, folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.delenv("AWS_EC2_METADATA_DISABLED")
    patch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", issuer.url)


def _ecs(issuer: Issuer, folder: Path, patch: pytest.MonkeyPatch) -> None:
    # Its address is fixed, 169.254.170.2.
    patch.setattr("botocore.utils.ContainerMetadataFetcher.IP_ADDRESS", urlsplit(issuer.url).netloc)
    patch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/task")


def _pod_identity(issuer: Issuer, folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "pod").write_text(POD_TOKEN)
    patch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{issuer.url}/v1/credentials")
    patch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(folder / "pod"))


def _web_identity(issuer: Issuer, folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "identity").write_text("token-of-the-account")
    patch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    patch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(folder / "identity"))
    patch.setenv("AWS_ENDPOINT_URL_STS", issuer.url)


def _assumed_role(issuer: Issuer, folder: Path, patch: pytest.MonkeyPatch) -> None:
    _profile(folder, patch, role_arn="arn:aws:iam::123456789012:role/reader", source_profile="base")
    patch.setenv("AWS_ENDPOINT_URL_STS", issuer.url)


def _credential_process(issuer: Issuer, folder: Path, patch: pytest.MonkeyPatch) -> None:
    program = folder / "issue.py"
    program.write_text(f"import urllib.request\nprint(urllib.request.urlopen('{issuer.url}/process').read().decode())")
    _profile(folder, patch, credential_process=f"{sys.executable} -S {program}")


def _single_sign_on(issuer: Issuer, folder: Path, patch: pytest.MonkeyPatch) -> None:
    _profile(folder, patch, sso_start_url=START_URL, sso_region="us-east-1", sso_account_id="1", sso_role_name="reader")
    # The cache of `aws sso login`; botocore reads HOME when it is imported.
    ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    token = {"startUrl": START_URL, "region": "us-east-1", "accessToken": SIGN_IN_TOKEN, "expiresAt": ends}
    (folder / f"{hashlib.sha1(START_URL.encode()).hexdigest()}.json").write_text(json.dumps(token))
    patch.setattr("botocore.credentials.SSOProvider._SSO_TOKEN_CACHE_DIR", str(folder))
    patch.setenv("AWS_ENDPOINT_URL_SSO", issuer.url)


# How a machine is set up that gets its keys from each of them.
KINDS: dict[str, Setup] = {
    "instance role": _instance_role,
    "ECS": _ecs,
    "Pod Identity": _pod_identity,
    "IRSA": _web_identity,
    "assume role": _assumed_role,
    "credential_process": _credential_process,
    "SSO": _single_sign_on,
}


def set_up(kind: str, issuer: Issuer, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes this process one whose only AWS keys come from one kind of issuer, and whose store is behind the gate."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        patch.setenv(name, str(folder / "none"))
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_ENDPOINT_URL_S3", issuer.url)
    patch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0.0)  # between its three tries
    KINDS[kind](issuer, folder, patch)
