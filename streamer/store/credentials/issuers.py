"""Explains why no credentials were given: maps the errors of the clouds' libraries, and asks the metadata server.

Used by the modules that look for credentials (`store/credentials/`), and for errors of stores that look by themselves
(`store/fsspec_errors.py`, `store/obstore_clients.py`). Messages quote what an issuer of AWS answers, with secrets
removed, but no other text of a foreign error: it may have the output of a program or a token, and stays, with secrets
removed, in `__cause__`. The libraries mistake a metadata server that is busy or not ready for a machine without a role,
so the server is asked for the reason.

Sources: AWS, "Use the Instance Metadata Service to access instance metadata". Google, "Troubleshoot GKE authentication"
(the metadata server of a node takes some seconds after a pod's start). Azure, "How to use managed identities for Azure
resources on an Azure VM to acquire an access token" (404, 410, 429 and 5xx: try again).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec

from streamer.errors import ConfigError, StreamerError
from streamer.store import failures

# Codes of AWS's token service (STS) after which another try may succeed.
_BUSY_CODES = ("Throttling", "ThrottlingException", "RequestLimitExceeded", "IDPCommunicationError", "InternalFailure")
_WRONG = ("ProfileNotFound", "PartialCredentialsError", "InvalidConfigError", "ConfigParseError", "NoRegionError")
_SIGN_IN = (
    *("SSOTokenLoadError", "UnauthorizedSSOTokenError", "SSOError", "PendingAuthorizationExpiredError"),
    *("TokenRetrievalError", "LoginTokenLoadError", "LoginRefreshTokenError"),
)
_OPERATIONS = ("AssumeRole", "AssumeRoleWithWebIdentity", "AssumeRoleWithSAML", "GetRoleCredentials", "GetSessionToken")
_STATUS = re.compile(r"non 200 response (\d{3})")


def silence_library(library: str) -> None:
    """Sets a library's logger to errors only, unless the user has set its level.

    The libraries log a page or a traceback for each failed look for credentials; the key ring warns instead.
    """
    logger = logging.getLogger(library)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)


@contextmanager
def map_aws_errors(root: str, profile: str | None) -> Iterator[None]:
    """Maps whatever boto raises inside its `with` to a ConfigError, an AccessDeniedError or another StoreError.

    Args:
        root: root of the urls, for messages.
        profile: name of the profile that the options name, for messages, or None.
    """
    try:
        yield
    except StreamerError:
        raise
    except Exception as error:  # noqa: BLE001 - the edge: whatever boto raises becomes ours
        raise _explain_boto(root, profile, error) from failures.redact(error)


def find_issuer_error(root: str, errors: Sequence[BaseException]) -> StreamerError | None:
    """Returns the error of streamer if an issuer of AWS's keys failed, not the store; None if the store did.

    Args:
        root: root of the urls, for messages.
        errors: an error of s3fs with its causes.
    """
    for error in errors:
        response = getattr(error, "response", None)
        if getattr(error, "operation_name", "") in _OPERATIONS and isinstance(response, Mapping):
            return _explain_answer(root, error, response)
        if type(error).__name__ in _SIGN_IN:
            return _explain_boto(root, None, error)
    return None


def _explain_boto(root: str, profile: str | None, error: BaseException) -> StreamerError:
    """Returns the error for one that boto raised while it looked for keys."""
    kind = type(error).__name__
    if kind in _WRONG:
        named = f"profile={profile!r}: " if profile is not None else ""
        advice = "; set AWS_REGION" if kind == "NoRegionError" else ""
        return ConfigError(f"{named}the AWS configuration is not usable ({kind}){advice}", field="profile")
    if kind in _SIGN_IN:
        command = "aws sso login" + (f" --profile {profile}" if profile is not None else "")
        return failures.refused_by_issuer(root, f"no sign-in is valid ({kind})", f"sign in: {command}")
    if kind in ("EOFError", "RefreshWithMFAUnsupportedError"):
        advice = "take keys of a session: aws sts get-session-token --serial-number ... --token-code ..."
        return failures.refused_by_issuer(root, "the profile asks for a code of MFA, which a job cannot enter", advice)
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return _explain_answer(root, error, response)
    # The issuer has not answered, or boto does not understand its answer.
    known = getattr(error, "kwargs", None)
    facts = known if isinstance(known, Mapping) else {}
    if facts.get("provider") == "custom-process":
        remedy = "run the program of credential_process by hand"
        return failures.refused_by_issuer(root, f"credential_process failed ({kind})", remedy, soon=True)
    if found := _STATUS.search(str(facts.get("error_msg", ""))):
        return failures.unobtainable(root, f"the server of the container's credentials answered {found[1]}")
    host = urlsplit(str(facts.get("endpoint_url", ""))).netloc
    return failures.unobtainable(root, f"{kind}, {host}" if host else kind)


def _explain_answer(root: str, error: BaseException, response: Mapping[str, Mapping[str, object]]) -> StreamerError:
    """Returns the error for an answer of the issuer, as boto has parsed it."""
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    what = f"{getattr(error, 'operation_name', 'it')} was answered with {code}"
    sentence = failures.sentence(str(response.get("Error", {}).get("Message", "")))
    what += f" ({sentence})" if sentence else ""
    if code in _BUSY_CODES or (isinstance(status, int) and (status >= 500 or status == 429)):
        return failures.unobtainable(root, what)
    return failures.refused_by_issuer(root, what, "check the role and its trust policy")


# ---------------------------------------------------------------- the metadata server of a machine

# Time for each step of a request: the server is one hop away, and botocore waits as long.
_SECONDS = 1.0
_MOST_BYTES = 4096


class MetadataAnswer(msgspec.Struct, frozen=True):
    """Holds the answer of a metadata server, or why there is none.

    Attributes:
        status: HTTP status, or None if there was no answer.
        text: body of the answer, at most 4 KiB.
        is_connected: whether a connection was made.
    """

    status: int | None
    text: str = ""
    is_connected: bool = True


def ask_metadata(url: str, headers: Mapping[str, str], method: str = "GET") -> MetadataAnswer:
    """Sends one request to a metadata server, without a proxy. Blocking. A failure is an answer without status."""
    import http.client  # slow, and rarely needed

    try:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
        connection.connect()
    except (OSError, ValueError, http.client.HTTPException):  # a variable may name a host or port that can be none
        return MetadataAnswer(None, is_connected=False)
    try:
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), headers=dict(headers))
        response = connection.getresponse()
        return MetadataAnswer(response.status, response.read(_MOST_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError, http.client.HTTPException):
        return MetadataAnswer(None)
    finally:
        connection.close()


def explain_metadata(
    root: str, answer: MetadataAnswer, hint: str = "", *, missing_is_busy: bool = False
) -> StreamerError:
    """Returns the error for a metadata server that gave no credentials.

    Args:
        root: root of the urls, for messages.
        answer: its answer.
        hint: advice for the message if the server takes connections and does not answer.
        missing_is_busy: whether its status 404 asks for another try.
    """
    if answer.status is None:
        silence = "its metadata server takes the connection and does not answer" + (f"; {hint}" if hint else "")
        why = silence if answer.is_connected else "no metadata server answers"
        return failures.no_credentials(root, why, soon=True)
    if answer.status in (408, 410, 429) or answer.status >= 500 or (missing_is_busy and answer.status == 404):
        return failures.unobtainable(root, f"the metadata server answered {answer.status}")
    return failures.no_credentials(root, f"the metadata server answered {answer.status}")
