"""Says why no credentials were given: by the errors of the clouds' own libraries, and by the metadata server itself.

Messages do not contain the text of a foreign error, which may quote the output of a program or a token; the text, with
secrets removed, stays in `__cause__`.

The libraries take a metadata server that is busy or not ready for a machine without a role, so it is asked for the
reason.

Sources: AWS, "Use the Instance Metadata Service to access instance metadata"; Google, "Troubleshoot GKE authentication"
(the metadata server of a node takes some seconds after a pod's start); Azure, "How to use managed identities for Azure
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

# Answers of STS after which another try may succeed.
_BUSY_CODES = ("Throttling", "ThrottlingException", "RequestLimitExceeded", "IDPCommunicationError", "InternalFailure")
_WRONG = ("ProfileNotFound", "PartialCredentialsError", "InvalidConfigError", "ConfigParseError", "NoRegionError")
_SIGN_IN = (
    *("SSOTokenLoadError", "UnauthorizedSSOTokenError", "SSOError", "PendingAuthorizationExpiredError"),
    *("TokenRetrievalError", "LoginTokenLoadError", "LoginRefreshTokenError"),
)
_OPERATIONS = ("AssumeRole", "AssumeRoleWithWebIdentity", "AssumeRoleWithSAML", "GetRoleCredentials", "GetSessionToken")
_STATUS = re.compile(r"non 200 response (\d{3})")


def silence_library(library: str) -> None:
    """Silences the libraries, which log a page or a traceback for each failed look; the ring warns."""
    logger = logging.getLogger(library)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)


@contextmanager
def map_aws_errors(root: str, profile: str | None) -> Iterator[None]:
    """Maps the errors that boto raises while it looks for keys."""
    try:
        yield
    except StreamerError:
        raise
    except Exception as error:  # noqa: BLE001 - the edge: whatever boto raises becomes ours
        raise _explain_boto(root, profile, error) from failures.redact(error)


def find_issuer_error(root: str, errors: Sequence[BaseException]) -> StreamerError | None:
    """Returns the error if the issuer that s3fs asked for keys failed; None if the store did."""
    for error in errors:
        response = getattr(error, "response", None)
        if getattr(error, "operation_name", "") in _OPERATIONS and isinstance(response, Mapping):
            return _explain_answer(root, error, response)
        if type(error).__name__ in _SIGN_IN:
            return _explain_boto(root, None, error)
    return None


def _explain_boto(root: str, profile: str | None, error: BaseException) -> StreamerError:
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
    # There is no answer, or one that boto does not understand.
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
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    what = f"{getattr(error, 'operation_name', 'it')} was answered with {code}"
    sentence = failures.sentence(str(response.get("Error", {}).get("Message", "")))
    what += f" ({sentence})" if sentence else ""
    if code in _BUSY_CODES or (isinstance(status, int) and (status >= 500 or status == 429)):
        return failures.unobtainable(root, what)
    return failures.refused_by_issuer(root, what, "check the role and its trust policy")


# ---------------------------------------------------------------- the metadata server of a machine

# The server is one hop away; botocore waits as long.
_SECONDS = 1.0
_MOST_BYTES = 4096


class MetadataAnswer(msgspec.Struct, frozen=True):
    """An answer, or the reason why there is none.

    Attributes:
        is_connected: whether something listens there.
    """

    status: int | None
    text: str = ""
    is_connected: bool = True


def ask_metadata(url: str, headers: Mapping[str, str], method: str = "GET") -> MetadataAnswer:
    """Asks once, past every proxy."""
    import http.client  # slow, and rarely needed

    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
    try:
        connection.connect()
    except OSError:
        return MetadataAnswer(None, is_connected=False)
    try:
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), headers=dict(headers))
        response = connection.getresponse()
        return MetadataAnswer(response.status, response.read(_MOST_BYTES).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException):
        return MetadataAnswer(None)
    finally:
        connection.close()


def explain_metadata(
    root: str, answer: MetadataAnswer, hint: str = "", *, missing_is_busy: bool = False
) -> StreamerError:
    """Returns the error for a server that gave no credentials; `missing_is_busy`: whether 404 asks for another try."""
    if answer.status is None:
        silence = "its metadata server takes the connection and does not answer" + (f"; {hint}" if hint else "")
        why = silence if answer.is_connected else "no metadata server answers"
        return failures.no_credentials(root, why, soon=True)
    if answer.status in (408, 410, 429) or answer.status >= 500 or (missing_is_busy and answer.status == 404):
        return failures.unobtainable(root, f"the metadata server answered {answer.status}")
    return failures.no_credentials(root, f"the metadata server answered {answer.status}")
