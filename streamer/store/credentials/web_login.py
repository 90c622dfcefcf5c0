"""Logs in to a web server by basic authentication, with the login in its url or the one that netrc has for its host.

Used when a store of a web server is opened (`store/__init__.py`), and by `store/fsspec_store.py`.
"""

from __future__ import annotations

import logging
import os
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from streamer.store.credentials import find_in_home
from streamer.store.options import Translation

_log = logging.getLogger(__name__)

# A user and a password.
Login = tuple[str, str]


def sign_in(
    root: str,
    login_text: str,
    translation: Translation,
    *,
    refuse_local: bool,
    variables: Mapping[str, str] = os.environ,
) -> None:
    """Adds the header that logs in to a web server to its settings, unless the user's headers have one.

    The login of the url takes precedence over that of netrc. Without either, nothing is added.

    Args:
        root: root of the server's urls.
        login_text: the login of the url, "user:password" with escapes, or "" if it had none.
        translation: settings of the server. Its headers get the login, and its `login` says for messages where that is
            from.
        refuse_local: whether a client of a service has chosen the url. Then netrc, a file of the service, is not read.
        variables: environment, in which NETRC may name the file, as for curl and requests.
    """
    headers = cast("dict[str, str]", translation.client.get("default_headers", {}))
    login = cast("Login | None", None)
    if any(name.lower() == "authorization" for name in headers):
        # The header may be this function's own, as a root may have several stores, one after the other.
        translation.login = translation.login or "with the header Authorization of storage_options"
    elif login_text:
        login = _parse_login(login_text)
        translation.login = "with the login of the url"
    elif not refuse_local and (login := _find_in_netrc(root, variables)):
        translation.login = f"with the login {login[0]!r} of netrc"
    if login:
        translation.client["default_headers"] = {**headers, "Authorization": _encode_basic(login)}


def encode_login(login_text: str) -> str:
    """Returns the value of the header Authorization for the login of a url, "user:password" with escapes."""
    return _encode_basic(_parse_login(login_text))


def _parse_login(login_text: str) -> Login:
    user, _, password = login_text.partition(":")
    return unquote(user), unquote(password)


def _encode_basic(login: Login) -> str:
    return f"Basic {b64encode(':'.join(login).encode()).decode()}"


def _find_in_netrc(root: str, variables: Mapping[str, str]) -> Login | None:
    """Returns the login that netrc has for the host of a root, or None. An unreadable file is only a warning."""
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
