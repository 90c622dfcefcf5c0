"""Runs the server that answers peers, as a process of its own. It ends with the engine.

`peers/server_process.py` starts it: `python -m streamer.peers ENGINE LISTENER`, with the descriptors of two inherited
sockets: the one to the engine, and the one that peers connect to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys

from streamer.base.message_socket import MessageSocket
from streamer.peers.server import PeerServer

# The process has a lower priority than the trainer's workers and the engine, since what it sends is for others.
_NICE = 10


async def _serve(end: MessageSocket, listener: socket.socket) -> None:
    await PeerServer(end, listener).serve()


def main(arguments: list[str]) -> None:
    """Runs the server on the two descriptors in `arguments`, until the engine ends it or ends itself."""
    # A core dump would contain the token.
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
