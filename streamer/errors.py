"""Defines the errors of streamer as one tree, and takes secrets and control characters out of texts.

Every package raises these errors. A training program catches them as `streamer.errors`.

    StreamerError
    ├─ ConfigError(ValueError)             names the field, the value, the rule
    ├─ ManifestError ─ ManifestVersionError, ManifestCorruptError
    ├─ StoreError                          mostly url; attempts, elapsed_seconds if a request was made
    │   ├─ ObjectNotFoundError(FileNotFoundError)
    │   ├─ AccessDeniedError(PermissionError)
    │   ├─ ObjectChangedError              version differs from the manifest: never retried, never cached
    │   ├─ ThrottledError                  429/503: retried, lowers concurrency
    │   ├─ StoreTimeoutError(TimeoutError)
    │   └─ ShortReadError                  fewer bytes than asked: retried
    ├─ IntegrityError                      mostly where: bytes on disk or from a peer are wrong, or unreadable
    ├─ CacheError(OSError) ─ CacheFullError, CacheVersionError
    ├─ ServiceError ─ EngineUnavailableError(ConnectionError), ProtocolError, ProtocolVersionError
    ├─ DecodeError                         sample, object, range, decoder
    ├─ RecodeError                         object, range, format: a block that cannot be decoded
    ├─ PackError                           a sample or a shard that cannot be written
    ├─ StateError                          a resume that does not fit
    ├─ WorkerError                         a worker that ended or is stuck, or a batch that it could not make
    └─ ClosedError, BrokenError            used after its end; a background task failed (see __cause__)

A message says what happened, where, with which numbers, and what to do. The same facts are in `details`. These are
plain values, so that an error can be sent through a socket or a pipe and raised again at the other end.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

Detail = str | int | float | bool | None

# Characters that a terminal obeys, or that change the order in which text is shown.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb]")
_LINE_STARTS = re.compile(r"\n(?=\S)")
# Schemes of urls in which the part before an @ is a container, a branch or a namespace.
_WITHOUT_LOGINS = frozenset(
    {"abfs", "abfss", "az", "wasb", "wasbs", "gs", "gcs", "s3", "s3a", "hf", "git", "github", "oci"}
)
_LOGIN = re.compile(r"(:/+)([^\s/'\"<>\\]*)@")
_SCHEME = re.compile(r"[\w+.-]+\Z")
_MAX_SCHEME_LETTERS = 20
# Parameters of signed urls of AWS, Google, Azure and CloudFront, and the names that hubs give to tokens.
_SIGNED = re.compile(
    r"([?&](?:amp;)?(?:x-amz-(?:signature|security-token|credential)|x-goog-(?:signature|credential)|sig|signature"
    r"|access_token|token|auth|api_?key|key|secret|password|key-pair-id|policy|awsaccesskeyid|googleaccessid)=)"
    r"[^&\s'\"<>\\]+",
    re.IGNORECASE,
)

# Attributes whose values `Discreet` hides.
_HIDDEN = frozenset(
    {"options", "storage_options", "out_storage_options", "token", "keys", "headers", "proxy", "signer"}
)


def without_controls(text: str) -> str:
    """Returns a text whose control characters are written as escapes, as `ascii` does; line breaks and tabs stay."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def printable(text: str) -> str:
    """Returns a text for a log or a terminal: control characters as escapes, and each line after the first indented.

    An indented line cannot be taken for an entry of the log.
    """
    return _LINE_STARTS.sub("\n    ", without_controls(text))


def is_login(scheme: str, text: str) -> bool:
    """Whether the part of a url before an @ is a login that has to be hidden.

    For http and https it always is, because web servers take tokens as users. For other schemes it is one if it has a
    password (a colon) and the scheme does not use that part for something else.

    Args:
        scheme: Scheme of the url, such as "https".
        text: Part between `://` and the @.
    """
    return scheme.lower() in ("http", "https") or (":" in text and scheme.lower() not in _WITHOUT_LOGINS)


def without_secrets(text: str) -> str:
    """Returns a text whose urls have no logins, and `...` for signatures and tokens; the rest is unchanged."""
    if "@" in text and ":/" in text:
        text = _LOGIN.sub(_hide_login, text)
    return _SIGNED.sub(r"\1...", text) if "=" in text else text


def _hide_login(found: re.Match[str]) -> str:
    start = found.start()
    scheme = _SCHEME.search(found.string[max(0, start - _MAX_SCHEME_LETTERS) : start])
    return found[1] if scheme is not None and is_login(scheme[0], found[2]) else found[0]


class Discreet:
    """Gives a msgspec struct, or a dataclass with `repr=False`, a repr that hides options, keys and tokens."""

    def __repr__(self) -> str:
        names: tuple[str, ...] = getattr(type(self), "__struct_fields__", None) or tuple(vars(self))
        shown = (f"{name}=..." if name in _HIDDEN else f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({', '.join(shown)})"


class StreamerError(Exception):
    """The base class of all errors of streamer. It can be pickled.

    Args:
        message: one or two sentences: what, where, the numbers, what to do.
        details: the facts of the message as plain values, by name.

    Attributes:
        message: the text without control characters, logins and signatures of urls.
        details: the facts by name; texts among them are without logins and signatures of urls.
    """

    def __init__(self, message: str, **details: Detail) -> None:
        # A message may quote names that others chose (objects, keys, columns), and texts of other libraries.
        self.message = printable(without_secrets(message))
        super().__init__(self.message)
        self.details: dict[str, Detail] = {
            name: without_secrets(value) if isinstance(value, str) else value for name, value in details.items()
        }

    def __str__(self) -> str:
        return self.message

    def of_member(self, name: str) -> StreamerError:
        """Returns a copy of this error whose message begins with the name of a mix's member, also in `details`."""
        return type(self)(f"member {name}: {self.message}", **{**self.details, "member": name})

    def __reduce__(self) -> tuple[Callable[..., StreamerError], tuple[object, ...]]:
        return _rebuild, (type(self), self.message, self.details)


def _rebuild(kind: type[StreamerError], message: str, details: dict[str, Detail]) -> StreamerError:
    return kind(message, **details)


class ConfigError(StreamerError, ValueError):
    """A setting is invalid; the message names the field, the value and the rule."""


class ManifestError(StreamerError):
    """A manifest cannot be built or used."""


class ManifestVersionError(ManifestError):
    """A manifest was written in a version of its format that this release cannot read."""


class ManifestCorruptError(ManifestError):
    """The bytes of a manifest do not agree with its digest or with each other."""


class StoreError(StreamerError):
    """An object cannot be had from its store, or not be written there.

    `details` has the url mostly, and `attempts` and `elapsed_seconds` if a request was made.
    """


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """The object or bucket does not exist."""


class AccessDeniedError(StoreError, PermissionError):
    """The store refused the credentials or got none, or the service does not give this client what it asks for."""


class ObjectChangedError(StoreError):
    """The object's version differs from the manifest's: the request is not retried, and its bytes are not cached."""


class ThrottledError(StoreError):
    """The store asks for fewer requests (429, 503): it gets fewer at once, and this one is retried."""


class StoreTimeoutError(StoreError, TimeoutError):
    """A request made no progress for longer than allowed; it is retried on a new connection."""


class ShortReadError(StoreError):
    """The store sent fewer bytes than asked for; the request is resumed after the last good byte."""


class IntegrityError(StreamerError):
    """Bytes differ from their checksums, or from what was written before; the message says where."""


class CacheError(StreamerError, OSError):
    """The cache folder cannot be used as asked."""


class CacheFullError(CacheError):
    """The limit is too small for what must be open at once; the message has the bytes."""


class CacheVersionError(CacheError):
    """The cache folder was written by another version of the layout."""


class ServiceError(StreamerError):
    """The engine cannot answer a client, or the two did not understand each other."""


class EngineUnavailableError(ServiceError, ConnectionError):
    """No engine answers and none could be started, or it refuses this client; the message says what to do."""


class ProtocolError(ServiceError):
    """The other side of a connection sent a message that the protocol does not allow, or out of turn."""


class ProtocolVersionError(ServiceError):
    """Client and engine have different versions of the protocol; the message names both."""


class DecodeError(StreamerError):
    """A sample's bytes could not be turned into arrays."""


class RecodeError(StreamerError):
    """A block cannot be decoded into records; the message names object, range, format and reason."""


class PackError(StreamerError):
    """A sample or a shard cannot be written; the message names the sample, or what is wrong at the destination."""


class StateError(StreamerError):
    """A saved state does not fit this dataset or order; the message names the field."""


class WorkerError(StreamerError):
    """A worker ended, is stuck, or could not make a batch: all its samples failed, or the user's code called sys.exit.

    The message says which. Of a crash it has the signal, the samples in flight and the memory.
    """


class ClosedError(StreamerError):
    """Something was used after it was closed."""


class BrokenError(StreamerError):
    """A background task failed; its error is the cause."""


def _tree(kind: type[StreamerError]) -> dict[str, type[StreamerError]]:
    found = {kind.__name__: kind}
    for child in kind.__subclasses__():
        found.update(_tree(child))
    return found


def from_wire(kind: str, message: str, details: dict[str, Detail]) -> StreamerError:
    """Rebuilds an error that another process has sent.

    Args:
        kind: Name of its class; a name that is not in the tree gives a ServiceError.
        message: Text of the error.
        details: Facts of the error, by name.
    """
    cls = _tree(StreamerError).get(kind, ServiceError)
    return cls(message, **details)


def describe_undecodable(text: str) -> str:
    """Returns why a name has bytes that Python could not decode: it is not UTF-8, or the locale is not.

    Args:
        text: Name as Python read it, with a surrogate for each of these bytes.
    """
    shown = ascii(text)[:200]
    encoding = sys.getfilesystemencoding()
    try:
        name = os.fsencode(text).decode()
    except UnicodeDecodeError:
        return f"{shown} is not UTF-8"
    return (
        f"{name[:200]} is UTF-8, but the locale of this process reads names as {encoding}: set LC_ALL=C.UTF-8 or "
        "PYTHONUTF8=1"
    )
