"""Where the addresses of the members are from: a list, a name, or SLURM."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from streamer.errors import ConfigError
from streamer.peers.addresses import joined, split_address

_LOOKUP_SECONDS = 1.0
# It asks no controller, but reads SLURM's configuration, perhaps from a busy network disk.
_SCONTROL_SECONDS = 20.0


class Lookup(Protocol):
    """Where the addresses are from."""

    async def __call__(self) -> Sequence[str]:
        """The addresses of now.

        Raises:
            OSError: they cannot be looked up.
        """
        ...


def parse_members(members: str) -> Lookup:
    """What `[peers] members` says. Blocks where SLURM is asked.

    Raises:
        ConfigError: neither "dns:name:port", "slurm:port" nor addresses; or SLURM does not know the nodes of this job.
    """
    if members.startswith("dns:"):
        return DnsName(*split_address(members.removeprefix("dns:")))
    if members.startswith("slurm:"):
        _, port = split_address(members)
        return StaticList([joined(host, port) for host in _slurm_hosts()])
    addresses = [address.strip() for address in members.split(",")]
    if not all(addresses):
        raise ConfigError(f"members={members!r} has an empty address", field="members")
    return StaticList([joined(*split_address(address)) for address in addresses])


class StaticList:
    """A list that never changes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def __call__(self) -> Sequence[str]:
        """See `Lookup`."""
        return self._addresses


class DnsName:
    """All addresses of a name, such as that of a headless service."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    async def __call__(self) -> Sequence[str]:
        """See `Lookup`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_LOOKUP_SECONDS):
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return sorted({joined(str(address[0]), self._port) for *_, address in found})


def _slurm_hosts(variables: Mapping[str, str] = os.environ) -> list[str]:
    """The nodes of this job: scontrol expands names such as gpu[01-04,07].

    Raises:
        ConfigError: this is no job, or there is no scontrol.
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
