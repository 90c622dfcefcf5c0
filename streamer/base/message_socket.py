"""Sockets between a process and its child that keep messages apart, with descriptors beside them.

They are SOCK_SEQPACKET pairs: a message arrives whole or not at all, so that a process that is killed at any moment
leaves nothing half-written. The modules that send them say what they mean.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from array import array
from collections.abc import Iterator, Sequence

from streamer.base.system_limits import out_of_descriptors

# It is below the kernel's default limit for one datagram (net.core.wmem_default = 212,992 bytes on Linux).
MESSAGE_BYTES = 1 << 17

Message = tuple[bytes, list[int]]


class MessageSocket:
    """One end of a pair.

    Args:
        end: a connected SOCK_SEQPACKET socket, which this object closes.
    """

    __slots__ = ("_end",)

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def __repr__(self) -> str:
        return f"MessageSocket({self._end.fileno()})"

    @classmethod
    def pair(cls) -> tuple[MessageSocket, MessageSocket]:
        """Makes two connected ends, both of which wait until they can send or receive."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def adopt(cls, descriptor: int) -> MessageSocket:
        """Takes the end that this process was started with, or was sent; its own children do not inherit it."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """Returns the descriptor; -1 after `close`."""
        return self._end.fileno()

    def set_blocking(self, blocking: bool) -> None:
        """Sets whether `send` and `receive` wait."""
        self._end.setblocking(blocking)

    def send(self, raw: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Sends a message with descriptors; returns False if the other end is closed.

        Raises:
            BlockingIOError: this end does not wait, and the other one has not read what was sent before.
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
        """Returns the next message with its descriptors, or None if the other end is closed.

        Raises:
            BlockingIOError: this end does not wait, and there is no message.
            ConfigError: this process can take no further descriptor.
        """
        try:
            if not max_descriptors:
                return (raw, []) if (raw := self._end.recv(max_bytes, flags)) else None
            # socket.recv_fds is not used: it ignores its flags (CPython 3.11).
            space = socket.CMSG_LEN(max_descriptors * array("i").itemsize)
            raw, ancillary, found, _ = self._end.recvmsg(max_bytes, space, flags)
        except ConnectionResetError:  # it was closed with messages of this end unread
            return None
        numbers = array("i")
        for *_, content in ancillary:
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
        descriptors = numbers.tolist()
        if found & socket.MSG_CTRUNC:  # the kernel has dropped what the table of this process has no place for
            for descriptor in descriptors:
                os.close(descriptor)
            raise out_of_descriptors()
        return (raw, descriptors) if raw else None

    def receive_available(self, max_bytes: int, max_descriptors: int = 0) -> Iterator[Message | None]:
        """Yields the messages that have arrived, without waiting, and None after the last one of a closed end.

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
        """Waits on the running loop for a message without descriptors; returns b"" if the other end is closed."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._end, max_bytes)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        """Closes this end; idempotent."""
        self._end.close()


def wait_until_readable(descriptor: int, seconds: float) -> bool:
    """Waits at most `seconds` until a descriptor can be read; returns whether it can.

    It does not use select(2), which fails for descriptors above 1023, which a mix of many members has.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
