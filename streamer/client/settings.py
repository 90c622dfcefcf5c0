"""How a client finds or starts its engine."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamer.config import Environment, check_socket_path, read_token
from streamer.errors import ConfigError
from streamer.wire.messages import PROTOCOL

INLINE = "inline"


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How to reach an engine.

    Attributes:
        cache_dir: absolute; the cache folder of the embedded engine, or where a trainer sees a sidecar's.
        runtime_dir: short folder for sockets, locks and logs.
        engine: None or "auto": the embedded engine of `cache_dir`; "inline": the same, and one that is started runs in
            this process; "unix:/path": that one and no other.
        cache_bytes: limit for an engine started by this client; None lets it choose.
        storage_options: as fsspec takes them; sent to the engine, never logged.
        job: the same text for all ranks of a job; "" if unknown.
        connect_seconds: how long an engine that this client does not start may stay away before it is an error.
        token_file: holds what the engine asks for; read at each connect, so it may be renewed.
        config: the TOML file of an engine started by this client, absolute; None: the defaults.
        grace_seconds: how long an engine started by this client stays after its last connection.
        protocol: the version that it speaks; another than ours for statistics only.
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

    def __post_init__(self) -> None:
        for name in ("cache_dir", "runtime_dir"):
            try:
                str(getattr(self, name)).encode()
            except UnicodeEncodeError as error:
                raise ConfigError(f"{name}={os.fsencode(getattr(self, name))!r} is no UTF-8", field=name) from error

    @classmethod
    def from_environment(cls, environment: Environment | None = None) -> ClientSettings:
        """The defaults of this process."""
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
        """The engine is an external service: connect, never start one."""
        return self.engine is not None and self.engine not in ("auto", "embedded", INLINE)

    @property
    def inline(self) -> bool:
        """An engine that this client starts runs in this process."""
        return self.engine == INLINE

    @property
    def engine_id(self) -> str:
        """Names socket, lock and log of the embedded engine in the runtime folder."""
        return hashlib.blake2b(os.fsencode(os.path.realpath(self.cache_dir)), digest_size=6).hexdigest()

    @property
    def socket_path(self) -> Path:
        """Where the engine listens.

        Raises:
            ConfigError: not a unix socket, or a path that the kernel cannot take.
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
        """The token for the engine; "" for none.

        Raises:
            ConfigError: the token file cannot be read.
        """
        return "" if self.token_file is None else read_token(self.token_file)

    def encoded_options(self) -> bytes:
        """The storage options as JSON.

        Raises:
            ConfigError: an option that is no plain value (an object cannot travel to the engine).
        """
        try:
            return json.dumps(dict(self.storage_options), sort_keys=True).encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"storage_options must hold plain values (texts, numbers, lists, dicts): {error}; leave objects of "
                "credentials out: the engine finds this machine's identity by itself (docs/deploy/credentials.md)",
                field="storage_options",
            ) from error
