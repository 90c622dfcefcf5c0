"""The variables that an engine has from the process that started it: credentials and addresses of stores, settings.

It also serves other processes, and stays for some seconds after the last one: the next job may have other variables.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from streamer.config import ENGINE_VARIABLES
from streamer.errors import StoreError, StreamerError

logger = logging.getLogger(__name__)

_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "GCE_METADATA_", "CLOUDSDK_", "IDENTITY_", "MSI_", "HF_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_NAMES = frozenset(
    [*_PROXIES, *map(str.upper, _PROXIES), *_CERTIFICATES, "NETRC", "STORAGE_EMULATOR_HOST", "STREAMER_CONFIG"]
    + [f"STREAMER_{name}" for name in ENGINE_VARIABLES]
)
# Pid of an engine -> its variables, or, if they cannot be read, those of this process when it first met that engine.
_met: dict[int, dict[str, str]] = {}


def record_engine(engine: int, variables: Mapping[str, str] = os.environ) -> None:
    """Keeps the variables of an engine, given its pid, that this process found or started; warns about differences."""
    if engine in _met:
        return
    mine = _select(variables)
    theirs = _read_engine(engine)
    _met[engine] = mine if theirs is None else theirs
    if theirs not in (None, mine):
        logger.warning(
            "the engine of this cache folder (pid %d) was started with other values of %s, and keeps them; where they "
            "matter, start 3 s after the last process that uses it, use another cache_dir, or pass storage_options",
            engine,
            ", ".join(_compare(mine, _met[engine])),
        )


def explain_error(error: StreamerError, engine: int, variables: Mapping[str, str] = os.environ) -> StreamerError:
    """Adds to a store's error the variables that have changed since, which the engine does not see."""
    before = _met.get(engine)
    now = _select(variables)
    if before is None or before == now or not isinstance(error, StoreError):
        return error
    return type(error)(
        f"{error.message}; {', '.join(_compare(before, now))} of this process are others than those of its "
        "engine, which keeps its own: close all datasets and loaders and try again after 3 s, or pass storage_options",
        **error.details,
    )


def _compare(some: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    return sorted({name for name, _ in some.items() ^ others.items()})


def _read_engine(engine: int) -> dict[str, str] | None:
    """Returns the variables that an engine of this user was started with, or None if they cannot be read."""
    try:
        with open(f"/proc/{engine}/cmdline", "rb") as command, open(f"/proc/{engine}/environ", "rb") as environment:
            is_engine = b"streamer" in command.read()
            content = environment.read()
    except OSError:  # not Linux, or in another container
        return None
    if not (is_engine and content):
        return None
    pairs = (os.fsdecode(line).partition("=") for line in content.split(b"\0") if line)
    return _select({name: text for name, _, text in pairs})


def _select(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if name.startswith(_PREFIXES) or name in _NAMES}
