"""Finds the addresses of the members as the configuration names them (`[peers] members`): a list, a name, or SLURM.

`peers/group.py` looks them up again and again; addresses are split and joined here for `peers/by_job.py` and
`peers/server_process.py`, too.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence

from streamer.errors import ConfigError

_LOOKUP_SECONDS = 1.0
# scontrol asks no controller here, but reads SLURM's configuration, perhaps from a busy network disk.
_SCONTROL_SECONDS = 20.0


# Returns the present addresses, host:port each; raises OSError (TimeoutError is one) if they cannot be looked up.
Lookup = Callable[[], Awaitable[Sequence[str]]]


def split_address(address: str) -> tuple[str, int]:
    """Splits an address such as 10.0.0.1:7070 or [::1]:7070 into the host, without brackets, and the port.

    Raises:
        ConfigError: the text is not host:port with a port up to 65535.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535 or (":" in host and host[0] != "["):
        raise ConfigError(
            f"{address!r} is not the address of a peer; write host:port, such as 10.0.0.1:7070", field="peers"
        )
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Returns host:port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_members(members: str) -> Lookup:
    """Returns the function that looks the members up, by the text of `[peers] members`.

    It blocks while SLURM is asked, up to 20 s. The addresses of a list and of SLURM do not change afterwards.

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
    """Returns a look-up that always gives these addresses."""

    async def lookup() -> Sequence[str]:
        return addresses

    return lookup


def _lookup_name(host: str, port: int) -> Lookup:
    """Returns a look-up of all addresses of a name, such as that of a headless service of Kubernetes."""

    async def lookup() -> Sequence[str]:
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # a label of it is longer than 63 letters, or empty
            raise OSError(f"{host!r} cannot be the name of a host: {error}") from error
        return sorted({join_address(str(address[0]), port) for *_, address in found})

    return lookup


def _slurm_hosts(variables: Mapping[str, str] = os.environ) -> list[str]:
    """Lists the nodes of this SLURM job; scontrol expands names such as gpu[01-04,07].

    Raises:
        ConfigError: the engine does not run in a SLURM job, or scontrol cannot be run or names no node.
    """
    # The nodes are passed to scontrol, because without an argument scontrol 22.05 looks at SLURM_NODELIST alone.
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
