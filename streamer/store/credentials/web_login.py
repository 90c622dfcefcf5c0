"""Basic authentication of a web server, with the login in its url or the one that netrc has for its host."""

from __future__ import annotations

import logging
import os
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from streamer.base.paths import find_in_home
from streamer.store.options import Translation

_log = logging.getLogger(__name__)

Login = tuple[str, str]


def sign_in(
    root: str,
    login_text: str,
    translation: Translation,
    *,
    refuse_local: bool,
    variables: Mapping[str, str] = os.environ,
) -> None:
    """Adds the header that logs in to a web server, unless the user's headers do. The url takes precedence over netrc.

    Args:
        root: root of the server.
        login_text: the login of its url, or "" if it had none.
        translation: its options, which receive the header, and its description for messages.
        refuse_local: whether a client has chosen the url: then it gets no login from the service's files.
        variables: the environment, where NETRC names the file, as for curl and requests.
    """
    headers = cast("dict[str, str]", translation.client.get("default_headers", {}))
    login = cast("Login | None", None)
    if any(name.lower() == "authorization" for name in headers):
        # It may be this function's own: a root may have several stores, one after the other.
        translation.login = translation.login or "with the header Authorization of storage_options"
    elif login_text:
        login = _parse_login(login_text)
        translation.login = "with the login of the url"
    elif not refuse_local and (login := _find_in_netrc(root, variables)):
        translation.login = f"with the login {login[0]!r} of netrc"
    if login:
        translation.client["default_headers"] = {**headers, "Authorization": _encode_basic(login)}


def encode_login(login_text: str) -> str:
    """Returns the header's value for the login of a url."""
    return _encode_basic(_parse_login(login_text))


def _parse_login(login_text: str) -> Login:
    user, _, password = login_text.partition(":")
    return unquote(user), unquote(password)


def _encode_basic(login: Login) -> str:
    return f"Basic {b64encode(':'.join(login).encode()).decode()}"


def _find_in_netrc(root: str, variables: Mapping[str, str]) -> Login | None:
    """Returns the login of the host. A file that cannot be read causes a warning: most servers ask for none."""
    named = variables.get("NETRC")
    path = Path(os.path.expanduser(named)) if named else find_in_home(".netrc")
    if path is None or not path.is_file():
        return None
    from netrc import NetrcParseError, netrc

    try:
        found = netrc(path).authenticators(urlsplit(root).hostname or "")
    except (NetrcParseError, OSError, UnicodeError) as error:  # its text has a line number, and may quote a token
        _log.warning("%s is not read: %s", path, error.strerror if isinstance(error, OSError) else type(error).__name__)
        return None
    return (found[0], found[2] or "") if found and found[0] else None
