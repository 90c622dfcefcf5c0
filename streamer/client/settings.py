"""The settings with which a client finds or starts its engine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamer.config import Environment, check_socket_path, read_token
from streamer.errors import ConfigError, describe_undecoded
from streamer.wire.messages import PROTOCOL
from streamer.wire.store_options import StoreOptions

INLINE = "inline"


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """The way to reach an engine.

    Attributes:
        cache_dir: absolute; the cache folder of the embedded engine, or a sidecar's as the trainer sees it.
        runtime_dir: short path of the folder for sockets, locks and logs.
        engine: None or "auto": the embedded engine of `cache_dir`; "inline": the same, but started in this process;
            "unix:/path": only the engine that listens there.
        cache_bytes: limit for an engine started by this client, or None if the engine chooses.
        storage_options: fsspec's options; sent to the engine, never logged.
        job: text that all ranks of a job share; "" if unknown.
        connect_seconds: how long an engine that this client does not start may be absent before it is an error.
        token_file: file with the token that the engine asks for; read at each connection, so it may be renewed.
        config: TOML file of an engine started by this client, absolute, or None for the defaults.
        grace_seconds: time for which an engine started by this client stays after its last connection.
        protocol: version that it speaks; other than ours for statistics only.
        is_configured: whether the user named the socket of `engine`, so that its folder's owner may listen there; false
            for a socket that was found in the runtime folder.
    """

    cache_dir: Path
    runtime_dir: Path
    engine: str | None = None
    cache_bytes: int | None = None
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    job: str = ""
    connect_seconds: float = 60.0
    grace_seconds: float = 3.0
    token_file: Path | None = None
    config: Path | None = None
    protocol: int = PROTOCOL
    is_configured: bool = True

    def __post_init__(self) -> None:
        for name in ("cache_dir", "runtime_dir"):
            try:
                str(getattr(self, name)).encode()
            except UnicodeEncodeError as error:
                raise ConfigError(f"{name}: {describe_undecoded(str(getattr(self, name)))}", field=name) from error

    @classmethod
    def from_environment(cls, environment: Environment | None = None) -> ClientSettings:
        """Returns the defaults of this process."""
        env = environment or Environment.read()
        return cls(
            cache_dir=env.cache_dir,
            runtime_dir=env.runtime_dir,
            engine=env.engine,
            job=env.rank.job,
            token_file=env.token_file,
            config=env.config,
        )

    @property
    def external(self) -> bool:
        """Whether the engine is an external service, which is never started."""
        return self.engine is not None and self.engine not in ("auto", "embedded", INLINE)

    @property
    def inline(self) -> bool:
        """Whether an engine that this client starts runs in this process."""
        return self.engine == INLINE

    @property
    def engine_id(self) -> str:
        """Name of the embedded engine's socket, lock and log in the runtime folder."""
        return hashlib.blake2b(os.fsencode(os.path.realpath(self.cache_dir)), digest_size=6).hexdigest()

    @property
    def socket_path(self) -> Path:
        """Path of the engine's socket.

        Raises:
            ConfigError: it is not a unix socket, or its path is too long for the kernel.
        """
        if self.external:
            scheme, _, path = str(self.engine).partition(":")
            if scheme != "unix" or not path.startswith("/"):
                raise ConfigError(
                    f'engine={self.engine!r}: write "unix:/path/to/socket" or "{INLINE}", or leave it out',
                    field="engine",
                )
            return check_socket_path(Path(path))
        return check_socket_path(self.runtime_dir / f"{self.engine_id}.sock")

    def token(self) -> str:
        """Returns the token for the engine, or "".

        Raises:
            ConfigError: the token file cannot be read.
        """
        return "" if self.token_file is None else read_token(self.token_file)

    def encode_options(self) -> StoreOptions:
        """Returns the storage options, as they travel to the engine.

        Raises:
            ConfigError: an option is not a plain value (an object cannot travel to the engine).
        """
        return StoreOptions.make(self.storage_options)
