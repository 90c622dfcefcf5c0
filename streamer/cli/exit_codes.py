"""Defines the exit codes of all commands, and chooses the code of an error.

Every command returns one of them, and `main.py` chooses that of an error. It and `cache_command.py` show their meanings
in the help.
"""

from __future__ import annotations

from enum import IntEnum

from streamer.errors import (
    AccessDeniedError,
    CacheError,
    ConfigError,
    EngineUnavailableError,
    ObjectNotFoundError,
    StreamerError,
)


class Exit(IntEnum):
    """The exit codes of every command. They do not change, because scripts use them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    STORE = 3
    CACHE = 4
    ENGINE = 5
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Exit.DONE: "done",
    Exit.FAILED: "failed; the message says why",
    Exit.USAGE: "a wrong option or setting",
    Exit.STORE: "the store has no such object, or refuses access",
    Exit.CACHE: "the cache folder or its disk cannot be used as asked",
    Exit.ENGINE: "no engine answers",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
    Exit.TERMINATED: "ended by SIGTERM",
}

# The first class of which an error is an instance decides.
_BY_ERROR: tuple[tuple[type[StreamerError], Exit], ...] = (
    (ConfigError, Exit.USAGE),
    (ObjectNotFoundError, Exit.STORE),
    (AccessDeniedError, Exit.STORE),
    (CacheError, Exit.CACHE),
    (EngineUnavailableError, Exit.ENGINE),
)


def exit_of(error: StreamerError) -> Exit:
    """Returns the exit code of an error; `FAILED` if its class has none of its own."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.FAILED)


def explain_codes() -> str:
    """Returns the codes and their meanings as a paragraph for the help."""
    lines = [f"  {int(code):>3}  {meaning}" for code, meaning in MEANINGS.items()]
    return "exit codes:\n" + "\n".join(lines)
