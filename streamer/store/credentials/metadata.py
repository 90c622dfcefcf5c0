"""Asks the metadata server of a cloud's machine for reasons that the clouds' own libraries often do not pass on.

They take a server that is busy or not ready for a machine without a role.

Sources: AWS, "Use the Instance Metadata Service to access instance metadata"; Google, "Troubleshoot GKE authentication"
(the metadata server of a node takes some seconds after a pod's start); Azure, "How to use managed identities for Azure
resources on an Azure VM to acquire an access token" (404, 410, 429 and 5xx: try again).
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from streamer.errors import StreamerError
from streamer.store import failures

# The server is one hop away; botocore waits as long.
_SECONDS = 1.0
_MOST_BYTES = 4096


class Answer(msgspec.Struct, frozen=True):
    """An answer, or the reason why there is none.

    Attributes:
        is_connected: whether something listens there.
    """

    status: int | None
    text: str = ""
    is_connected: bool = True


def ask(url: str, headers: Mapping[str, str], method: str = "GET") -> Answer:
    """Asks once, past every proxy."""
    import http.client  # slow, and rarely needed

    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
    try:
        connection.connect()
    except OSError:
        return Answer(None, is_connected=False)
    try:
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), headers=dict(headers))
        response = connection.getresponse()
        return Answer(response.status, response.read(_MOST_BYTES).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException):
        return Answer(None)
    finally:
        connection.close()


def failure(root: str, answer: Answer, hint: str = "", *, missing_is_busy: bool = False) -> StreamerError:
    """Returns the error for a server that gave no credentials; `missing_is_busy`: whether 404 asks for another try."""
    if answer.status is None:
        silence = "its metadata server takes the connection and does not answer" + (f"; {hint}" if hint else "")
        why = silence if answer.is_connected else "no metadata server answers"
        return failures.no_credentials(root, why, soon=True)
    if answer.status in (408, 410, 429) or answer.status >= 500 or (missing_is_busy and answer.status == 404):
        return failures.unobtainable(root, f"the metadata server answered {answer.status}")
    return failures.no_credentials(root, f"the metadata server answered {answer.status}")
