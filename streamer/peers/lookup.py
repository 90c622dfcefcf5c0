"""Finds the addresses of the members as the configuration names them: a list, a name, or SLURM."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence

from streamer.errors import ConfigError

_LOOKUP_SECONDS = 1.0
# It asks no controller, but reads SLURM's configuration, perhaps from a busy network disk.
_SCONTROL_SECONDS = 20.0


# Returns the addresses of now; raises OSError when they cannot be looked up.
Lookup = Callable[[], Awaitable[Sequence[str]]]


def split_address(address: str) -> tuple[str, int]:
    """Splits 10.0.0.1:7070 or [::1]:7070 into host and port.

    Raises:
        ConfigError: the text is anything else.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535 or (":" in host and host[0] != "["):
        raise ConfigError(
            f"{address!r} is not the address of a peer; write host:port, such as 10.0.0.1:7070", field="peers"
        )
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Joins host and port, with brackets around a host with colons."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_members(members: str) -> Lookup:
    """Parses `[peers] members`. It blocks while SLURM is asked.

    Raises:
        ConfigError: the text is neither "dns:name:port", "slurm:port" nor addresses, or SLURM does not know the nodes
            of this job.
    """
    if members.startswith("dns:"):
        return _lookup_name(*split_address(members.removeprefix("dns:")))
    if members.startswith("slurm:"):
        _, port = split_address(members)
        return _lookup_list([join_address(host, port) for host in _slurm_hosts()])
    addresses = [address.strip() for address in members.split(",")]
    if not all(addresses):
        raise ConfigError(f"members={members!r} has an empty address", field="members")
    return _lookup_list([join_address(*split_address(address)) for address in addresses])


def _lookup_list(addresses: Sequence[str]) -> Lookup:
    """Looks up a list that never changes."""

    async def lookup() -> Sequence[str]:
        return addresses

    return lookup


def _lookup_name(host: str, port: int) -> Lookup:
    """Looks up all addresses of a name, such as that of a headless service."""

    async def lookup() -> Sequence[str]:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return sorted({join_address(str(address[0]), port) for *_, address in found})

    return lookup


def _slurm_hosts(variables: Mapping[str, str] = os.environ) -> list[str]:
    """Lists the nodes of this job; scontrol expands names such as gpu[01-04,07].

    Raises:
        ConfigError: the engine does not run in a job, or scontrol cannot be run.
    """
    # Named: by itself scontrol 22.05 looks at SLURM_NODELIST alone.
    nodes = variables.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise _no_hosts("SLURM_JOB_NODELIST is not set")
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SCONTROL_SECONDS, check=False)
    except OSError as error:
        raise _no_hosts(f"scontrol cannot be run ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise _no_hosts(f"scontrol has not answered for {_SCONTROL_SECONDS:.0f} s") from error
    if not done.stdout.split():  # its exit status is 0 for any text
        raise _no_hosts(f"scontrol says {done.stderr.strip()!r}")
    return done.stdout.split()


def _no_hosts(why: str) -> ConfigError:
    return ConfigError(
        f"the nodes of this SLURM job are unknown: {why}; start the engine with srun inside of a job, with scontrol on "
        "PATH, or list the peers: members='a:7070,b:7070'",
        field="members",
    )
