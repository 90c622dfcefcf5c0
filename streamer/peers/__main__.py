"""Runs the peer server: `python -m streamer.peers ENGINE LISTENER`, two inherited sockets. It ends with its engine."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys

from streamer.base.message_socket import MessageSocket
from streamer.peers.server import PeerServer

# It is below the trainer's workers and the engine, since what it sends is for others.
_NICE = 10


async def _serve(end: MessageSocket, listener: socket.socket) -> None:
    await PeerServer(end, listener).serve()


def main(arguments: list[str]) -> None:
    """Runs the server on the descriptors that the engine has passed."""
    # It knows the token.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    _, most_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_descriptors, most_descriptors))
    logging.basicConfig(format="%(levelname)s:%(name)s: %(message)s", level=logging.WARNING)
    engine, descriptor = map(int, arguments)
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    asyncio.run(_serve(MessageSocket.adopt(engine), listener))


if __name__ == "__main__":
    main(sys.argv[1:])
