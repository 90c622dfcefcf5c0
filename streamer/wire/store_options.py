"""Storage options on their way from a trainer to the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping

from streamer.errors import ConfigError

# Options have keys of some kB, and names of columns. They are parsed and compared on the engine's loop: 8 MB kept it
# for seconds.
MAX_OPTIONS_BYTES = 1 << 20


class StoreOptions:
    """fsspec's storage options as JSON text: encoded once, by who has them. They may be secret, and are never logged.

    Args:
        encoded: a JSON mapping, as it came from a socket; it is read when it is needed.
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
        """Encodes options.

        Raises:
            ConfigError: an option is not a plain value (an object cannot travel to the engine).
        """
        try:
            return cls(json.dumps(dict(options), sort_keys=True).encode())
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"storage_options must hold plain values (texts, numbers, lists, dicts): {error}; leave objects of "
                "credentials out: the engine finds this machine's identity by itself (docs/deploy/credentials.md)",
                field="storage_options",
            ) from error

    @property
    def mapping(self) -> Mapping[str, object]:
        """The options by name.

        Raises:
            ConfigError: they are not a JSON mapping.
        """
        if self._mapping is None:
            self._mapping = decode_options(self.encoded, "storage_options") if self else {}
        return self._mapping

    def check(self) -> None:
        """Reads them, so that a client with wrong ones is told at once.

        Raises:
            ConfigError: they are not a JSON mapping.
        """
        self.mapping  # noqa: B018

    @property
    def key(self) -> str:
        """Text that is equal for equal options, however they are spelled; as secret as they are.

        Raises:
            ConfigError: they are not a JSON mapping.
        """
        if self._key is None:
            self._key = json.dumps(self.mapping, sort_keys=True)
        return self._key


NO_OPTIONS = StoreOptions()


def decode_options(encoded: bytes, field: str) -> dict[str, object]:
    """Decodes options from the socket.

    Args:
        encoded: JSON text.
        field: what the error names.

    Raises:
        ConfigError: they are not a JSON mapping. Their text is not quoted, because it may contain a secret.
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
