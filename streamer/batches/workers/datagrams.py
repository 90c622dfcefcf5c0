"""Datagrams between processes of one rank, with descriptors beside them.

On SOCK_SEQPACKET pairs: a message arrives whole or not at all, so a process that is killed at any moment leaves nothing
half-written.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence

from streamer.base.system_limits import descriptors_used_up

# Below the kernel's default limit for one datagram (net.core.wmem_default = 212,992 bytes on Linux).
MESSAGE_BYTES = 1 << 17


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, raw: bytes, descriptors: Sequence[int] = ()) -> bool:
    """Sends a message with descriptors. Returns False if the other end is closed."""
    try:
        if descriptors:
            socket.send_fds(end, [raw], descriptors, socket.MSG_NOSIGNAL)
        else:
            end.send(raw, socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def receive(end: socket.socket, most_descriptors: int) -> tuple[bytes, list[int]] | None:
    """Returns the next message with its descriptors, or None if the other end is closed.

    Raises:
        BlockingIOError: the socket does not block, and there is no message.
        ConfigError: this process can take no further descriptor.
    """
    try:
        raw, descriptors, flags, _ = socket.recv_fds(end, MESSAGE_BYTES, most_descriptors)
    except ConnectionResetError:
        return None
    if flags & socket.MSG_CTRUNC:  # the kernel has dropped what the table of this process has no place for
        for descriptor in descriptors:
            os.close(descriptor)
        raise descriptors_used_up()
    return (raw, descriptors) if raw else None


def readable(descriptor: int, seconds: float) -> bool:
    """Waits until a descriptor can be read; returns whether it can.

    Not by select(2): it fails for descriptors above 1023, which a mix of many members has.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
