"""Holds the settings with which a client finds or starts its engine, and derives the engine's socket from them.

Every client has one (`client/engine_client.py`); the loader's options, the commands and `streamer doctor` make it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamer.config import Environment, check_socket_path, read_token
from streamer.errors import ConfigError, describe_undecodable
from streamer.wire.messages import PROTOCOL
from streamer.wire.store_options import StoreOptions

INLINE = "inline"


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Says how to reach an engine, and how to start one. An embedded engine is one that its clients start.

    Attributes:
        cache_dir: absolute path of the cache folder: that of the embedded engine, or a service's as this process sees
            it.
        runtime_dir: absolute path of the folder for sockets, locks, logs and selections. It must be short: a socket's
            path is limited.
        engine: which engine. None, "auto" and "embedded" mean the embedded engine of `cache_dir`, in a process of its
            own. "inline" means the same, but started in this process. "unix:/path" means only the service that
            listens at this socket.
        cache_bytes: limit of the cache of an engine that this client starts; None leaves it to the engine.
        storage_options: the user's storage options (those of fsspec). They are sent to the engine and never logged.
        job: text that all ranks of a job share, or "" if it is unknown.
        connect_seconds: seconds to wait for a service that does not answer before that is an error.
        token_file: file with the token that the engine asks for, read at each connection. None means no token.
        config: absolute path of the TOML file of an engine that this client starts. None means the defaults.
        grace_seconds: seconds for which an engine that this client starts stays after its last connection.
        protocol: version of the protocol to speak. Only requests for statistics use another one than `PROTOCOL`.
        is_configured: whether the user named the socket of `engine`. Then the owner of the socket's folder may listen
            there, too. False for a socket that was found in the runtime folder.

    Raises:
        ConfigError: one of the two folders has a name that is not UTF-8.
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
                raise ConfigError(f"{name}: {describe_undecodable(str(getattr(self, name)))}", field=name) from error

    @classmethod
    def from_environment(cls, environment: Environment | None = None) -> ClientSettings:
        """Returns the settings that this process has by its environment variables.

        Args:
            environment: the variables, if they have been read. None means that they are read now.

        Raises:
            ConfigError: a variable is not what it should be.
        """
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
        """Whether the engine is only reached at the socket that `engine` names, and never started by this client."""
        return self.engine is not None and self.engine not in ("auto", "embedded", INLINE)

    @property
    def inline(self) -> bool:
        """Whether an engine that this client starts runs in this process."""
        return self.engine == INLINE

    @property
    def engine_id(self) -> str:
        """Name of the embedded engine's socket, lock and log without their endings: a hash of the cache folder."""
        return hashlib.blake2b(os.fsencode(os.path.realpath(self.cache_dir)), digest_size=6).hexdigest()

    @property
    def socket_path(self) -> Path:
        """Path of the engine's socket; no file needs to exist there.

        Raises:
            ConfigError: `engine` is none of the values that it may have, or the path is too long for the kernel.
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
        """Reads the token for the engine; "" without a token file.

        Raises:
            ConfigError: the token file cannot be read, or is empty.
        """
        return "" if self.token_file is None else read_token(self.token_file)

    def encode_options(self) -> StoreOptions:
        """Returns the storage options in the form in which they are sent to the engine.

        Raises:
            ConfigError: an option is not a plain value (an object cannot travel to the engine).
        """
        return StoreOptions.make(self.storage_options)
