"""Issuers of tokens: Google's metadata server and services of federation, Azure's metadata server.

Each answers as its provider documents it:

* metadata server of Compute Engine and GKE: https://cloud.google.com/compute/docs/access/authenticate-workloads
  and https://cloud.google.com/kubernetes-engine/docs/troubleshooting/authentication (a pod's first seconds)
* token exchange of workload identity federation: https://cloud.google.com/iam/docs/reference/sts/rest/v1/TopLevel/token
* impersonation:
  https://cloud.google.com/iam/docs/reference/credentials/rest/v1/projects.serviceAccounts/generateAccessToken
* token of a user: https://developers.google.com/identity/protocols/oauth2/web-server#offline
* metadata server of Azure (IMDS):
  https://learn.microsoft.com/en-us/entra/identity/managed-identities-azure-resources/how-to-use-vm-token
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ACCOUNT = "reader@project.iam.gserviceaccount.com"


@dataclass
class TokenIssuer:
    """Gives out tokens.

    Attributes:
        url: of all of its services.
        seconds: lifetime of the tokens.
        status: with which every request is answered; 200: as documented.
        issued: the tokens that were given out.
        asked: the paths of all requests.
    """

    seconds: float = 3600.0
    url: str = ""
    status: int = 200
    issued: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def issue(self, kind: str) -> str:
        """A new token."""
        self.issued.append(f"{kind}-{len(self.issued) + 1}")
        return self.issued[-1]


@contextmanager
def issuing_tokens(seconds: float = 3600.0) -> Iterator[TokenIssuer]:
    """An issuer in threads of this process."""
    issuer = TokenIssuer(seconds)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"issuer": issuer}))
    server.daemon_threads = False
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="issuer", kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers as the providers' token services; checks no assertion and no signature."""

    issuer: TokenIssuer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve(_GET)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._serve(_POST)

    def _serve(self, table: dict[str, Callable[[_Handler], None]]) -> None:
        path = urlsplit(self.path).path
        self.issuer.asked.append(path)
        if self.issuer.status != 200:
            self._answer({"error": "not now"}, self.issuer.status)
            return
        for ending, method in table.items():
            if path.endswith(ending):
                method(self)
                return
        self._answer({"error": "not found"}, 404)

    def _root(self) -> None:
        self._answer({})

    def _project(self) -> None:
        self._answer("project")

    def _account(self) -> None:
        self._answer({"email": ACCOUNT, "scopes": ["https://www.googleapis.com/auth/cloud-platform"], "aliases": []})

    def _google_token(self) -> None:
        token = self.issuer.issue("metadata")
        self._answer({"access_token": token, "expires_in": int(self.issuer.seconds), "token_type": "Bearer"})

    def _exchange(self) -> None:
        token = self.issuer.issue("federated")
        kind = "urn:ietf:params:oauth:token-type:access_token"
        answer = {"access_token": token, "issued_token_type": kind, "token_type": "Bearer"}
        self._answer({**answer, "expires_in": int(self.issuer.seconds)})

    def _user_token(self) -> None:
        self._answer({"access_token": self.issuer.issue("user"), "expires_in": 3600, "token_type": "Bearer"})

    def _refused(self) -> None:
        self._answer({"error": "invalid_grant", "error_description": "Token has been expired or revoked."}, 400)

    def _impersonate(self) -> None:
        if not self.headers["Authorization"].startswith("Bearer federated-"):
            self._answer({"error": {"code": 403, "status": "PERMISSION_DENIED"}}, 403)
            return
        ends = datetime.now(UTC) + timedelta(seconds=self.issuer.seconds)
        self._answer({"accessToken": self.issuer.issue("impersonated"), "expireTime": ends.strftime("%FT%TZ")})

    def _azure_token(self) -> None:
        if self.headers.get("Metadata") != "true":
            self._answer({"error": "bad_request_102"}, 400)
            return
        ends = int(time.time() + self.issuer.seconds)
        self._answer(
            {
                "access_token": self.issuer.issue("managed"),
                "expires_in": str(int(self.issuer.seconds)),
                "expires_on": str(ends),
                "resource": "https://storage.azure.com",
                "token_type": "Bearer",
            }
        )

    def _answer(self, content: object, status: int = 200) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words: object) -> None:
        """The tests read no log of requests."""


# By the end of the path; the first one that fits.
_GET: dict[str, Callable[[_Handler], None]] = {
    "/identity/oauth2/token": _Handler._azure_token,
    "/project/project-id": _Handler._project,
    "/service-accounts/default/": _Handler._account,
    "/token": _Handler._google_token,
    "/": _Handler._root,
}
_POST: dict[str, Callable[[_Handler], None]] = {
    "/v1/token": _Handler._exchange,
    "/user/token": _Handler._user_token,
    "/refused/token": _Handler._refused,
    ":generateAccessToken": _Handler._impersonate,
}


def on_google(issuer: TokenIssuer, patch: pytest.MonkeyPatch) -> None:
    """Makes this process one of a machine whose metadata server is the issuer; names are read at the import."""
    from google.auth.compute_engine import _metadata

    host = urlsplit(issuer.url).netloc
    patch.setenv("GCE_METADATA_HOST", host)
    patch.setenv("GCE_METADATA_IP", host)
    patch.setattr(_metadata, "_GCE_METADATA_HOST", host)


def federated(issuer: TokenIssuer, folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """A file of workload identity federation with impersonation, named by the environment."""
    (folder / "subject").write_text("token-of-another-cloud")
    path = folder / "federation.json"
    url = f"{issuer.url}/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"
    path.write_text(
        json.dumps(
            {
                "type": "external_account",
                "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
                "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
                "token_url": f"{issuer.url}/v1/token",
                "credential_source": {"file": str(folder / "subject")},
                "service_account_impersonation_url": url,
            }
        )
    )
    patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    return path


def on_azure(issuer: TokenIssuer, patch: pytest.MonkeyPatch) -> None:
    """Makes this process one of a machine with a managed identity."""
    patch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", issuer.url)
