"""Sends messages, and descriptors with them, between a process and its child over a pair of sockets.

Recoders, fetch processes, the peer server, the workers and their fork server are talked to in this way. What the
messages mean is defined beside them, as in `engine/processes/messages.py`. The sockets are SOCK_SEQPACKET pairs, where
a message arrives whole or not at all: a process that is killed at any moment leaves nothing half-written.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from array import array
from collections.abc import Iterator, Sequence

from streamer.base.system_limits import out_of_descriptors

# Limit of the messages that `receive` takes unless the caller says another one. It is below the kernel's default limit
# for one datagram (net.core.wmem_default, 212,992 bytes on Linux).
MESSAGE_BYTES = 1 << 17

# The bytes of a message, and the descriptors that came with it, which the receiver closes.
Message = tuple[bytes, list[int]]


class MessageSocket:
    """One end of a pair of sockets.

    Args:
        end: connected SOCK_SEQPACKET socket, which `close` closes.
    """

    __slots__ = ("_end",)

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def __repr__(self) -> str:
        return f"MessageSocket({self._end.fileno()})"

    @classmethod
    def pair(cls) -> tuple[MessageSocket, MessageSocket]:
        """Returns two new connected ends; their calls wait until they can send or receive."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def adopt(cls, descriptor: int) -> MessageSocket:
        """Returns the end that has this descriptor, which this process inherited or was sent.

        Children of this process will not inherit it.
        """
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """Returns the descriptor; -1 after `close`."""
        return self._end.fileno()

    def set_blocking(self, blocking: bool) -> None:
        """Sets whether `send` and `receive` wait."""
        self._end.setblocking(blocking)

    def send(self, raw: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Sends a message with descriptors, which stay open here; returns False if the other end is closed.

        Raises:
            BlockingIOError: this end does not wait, and the other one has not read what was sent before.
            OSError: the message is longer than the kernel takes.
        """
        try:
            if descriptors:
                socket.send_fds(self._end, [raw], descriptors, socket.MSG_NOSIGNAL)
            else:
                self._end.send(raw, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self, max_bytes: int = MESSAGE_BYTES, max_descriptors: int = 0, flags: int = 0) -> Message | None:
        """Returns the next message, which is not empty, with its descriptors, or None if the other end is closed.

        An empty message counts as the end; descriptors that came with it are closed.

        Args:
            max_bytes: length at which a message is cut.
            max_descriptors: number of descriptors that may come with it.
            flags: flags of recv(2).

        Raises:
            BlockingIOError: this end does not wait, and there is no message.
            ConfigError: this process can take no further descriptor, or more of them came than `max_descriptors`.
        """
        try:
            if not max_descriptors:
                return (raw, []) if (raw := self._end.recv(max_bytes, flags)) else None
            # socket.recv_fds is not used: it ignores its flags (CPython 3.11).
            space = socket.CMSG_LEN(max_descriptors * array("i").itemsize)
            raw, ancillary, found, _ = self._end.recvmsg(max_bytes, space, flags)
        except ConnectionResetError:  # the other end was closed before it had read all messages
            return None
        numbers = array("i")
        for *_, content in ancillary:
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
        descriptors = numbers.tolist()
        is_cut = found & socket.MSG_CTRUNC  # the kernel dropped descriptors, because this process may have no more
        if raw and not is_cut:
            return raw, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        if is_cut:
            raise out_of_descriptors()
        return None

    def receive_available(self, max_bytes: int, max_descriptors: int = 0) -> Iterator[Message | None]:
        """Yields the messages that have arrived, without waiting; None follows the last one if the other end is closed.

        Args:
            max_bytes: length at which a message is cut.
            max_descriptors: number of descriptors that may come with each.

        Raises:
            ConfigError: this process can take no further descriptor.
        """
        while self._end.fileno() >= 0:
            try:
                message = self.receive(max_bytes, max_descriptors, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            yield message
            if message is None:
                return

    async def wait_for_message(self, max_bytes: int) -> bytes:
        """Returns the next message, without descriptors, once it has come; b"" if the other end is closed.

        This end must be one that does not block (`set_blocking`).

        Args:
            max_bytes: length at which a message is cut.
        """
        try:
            return await asyncio.get_running_loop().sock_recv(self._end, max_bytes)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        """Closes this end; idempotent."""
        self._end.close()


def wait_until_readable(descriptor: int, seconds: float) -> bool:
    """Waits at most `seconds` until a descriptor can be read; returns whether it can.

    It uses poll(2), because select(2) fails for descriptors above 1023, which occur in a mix of many members.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
