"""Encodes storage options for their way from a client to the engine, and decodes them there.

`client/settings.py` makes them of the user's options, messages carry them (`loader/kinds/step_session.py` fills them
in), `service/` checks and passes them on, and the engine reads them when it opens a store. It decodes the options of a
format likewise (`engine/manifests/`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from streamer.errors import ConfigError

# Real options have some kB: credentials and names of columns. The engine parses and compares them on its event loop,
# which 8 MB of them blocked for seconds.
MAX_OPTIONS_BYTES = 1 << 20


class StoreOptions:
    """Holds fsspec's storage options as JSON text. They may be secret, and are never logged.

    Objects with the same text are equal. An object without options is false.

    Args:
        encoded: a JSON mapping, as it came from the socket; it is decoded when it is first needed.
    """

    __slots__ = ("_key", "_mapping", "encoded")

    def __init__(self, encoded: bytes = b"{}") -> None:
        self.encoded = encoded
        self._mapping: dict[str, object] | None = None
        self._key: str | None = None

    def __repr__(self) -> str:
        return f"StoreOptions({len(self.encoded)} bytes)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreOptions) and self.encoded == other.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)

    def __bool__(self) -> bool:
        return self.encoded not in (b"", b"{}")

    @classmethod
    def make(cls, options: Mapping[str, object]) -> StoreOptions:
        """Encodes options by name.

        Raises:
            ConfigError: an option is not a plain value (an object cannot travel to the engine).
        """
        try:
            return cls(json.dumps(dict(options), sort_keys=True).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"storage_options must hold plain values (texts, numbers, lists, dicts): {error}; leave objects of "
                "credentials out: the engine finds this machine's identity by itself (docs/deploy/credentials.md)",
                field="storage_options",
            ) from error

    @property
    def mapping(self) -> Mapping[str, object]:
        """The options by name; decoded at the first use.

        Raises:
            ConfigError: the text is not a JSON mapping, or is longer than `MAX_OPTIONS_BYTES`.
        """
        if self._mapping is None:
            self._mapping = decode_options(self.encoded, "storage_options") if self else {}
        return self._mapping

    def check(self) -> None:
        """Decodes the options, so that a client with wrong ones is told at once.

        Raises:
            ConfigError: see `mapping`.
        """
        self.mapping  # noqa: B018

    @property
    def key(self) -> str:
        """Text that is equal for equal options, in whatever order they were written; as secret as the options.

        Raises:
            ConfigError: see `mapping`.
        """
        if self._key is None:
            self._key = json.dumps(self.mapping, sort_keys=True)
        return self._key


NO_OPTIONS = StoreOptions()


def decode_options(encoded: bytes, field: str) -> dict[str, object]:
    """Decodes options that came from the socket, and returns them by name.

    Args:
        encoded: JSON text.
        field: name of the options in the error.

    Raises:
        ConfigError: the text is not a JSON mapping, or is longer than `MAX_OPTIONS_BYTES`. The error does not quote
            it, because it may contain a secret.
    """
    if len(encoded) > MAX_OPTIONS_BYTES:
        raise ConfigError(
            f"{field} have {len(encoded):,} bytes; at most {MAX_OPTIONS_BYTES:,} are possible", field=field
        )
    try:
        options = json.loads(encoded)
    except (ValueError, RecursionError):
        raise ConfigError(f"{field} are not JSON", field=field) from None
    if not isinstance(options, dict):
        raise ConfigError(f"{field} are not a mapping", field=field)
    return options
