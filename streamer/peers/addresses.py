"""host:port, as the configuration and the members have it."""

from __future__ import annotations

from streamer.errors import ConfigError


def split_address(address: str) -> tuple[str, int]:
    """Host and port of 10.0.0.1:7070 or [::1]:7070.

    Raises:
        ConfigError: something else.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535 or (":" in host and host[0] != "["):
        raise ConfigError(f"{address!r} is no address of a peer; write host:port, such as 10.0.0.1:7070", field="peers")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """host:port, with brackets where the host has colons."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
