"""The variables in which stores find credentials and addresses. An engine has those of the process that started it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from streamer.errors import StoreError, StreamerError

_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_")
_NAMES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "SSL_CERT_FILE")
# Pid of an engine -> the variables of this process when it first met that engine.
_met: dict[int, dict[str, str]] = {}


def meet(engine: int, variables: Mapping[str, str] = os.environ) -> None:
    """Keeps the variables with which this process has found or started an engine, given its pid."""
    _met.setdefault(engine, _of_stores(variables))


def explained(error: StreamerError, engine: int, variables: Mapping[str, str] = os.environ) -> StreamerError:
    """The same error; a store's names the variables that have changed since, which the engine does not see."""
    before, now = _met.get(engine), _of_stores(variables)
    if before is None or before == now or not isinstance(error, StoreError):
        return error
    changed = sorted(name for name, _ in before.items() ^ now.items())
    return type(error)(
        f"{error.message}; {', '.join(dict.fromkeys(changed))} changed in this process after its engine had started, "
        "which has its own: close all datasets and loaders and try again after 3 s, or pass storage_options",
        **error.details,
    )


def _of_stores(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if name.startswith(_PREFIXES) or name in _NAMES}
