"""Runs a fetch process: `python -m streamer.engine.processes SOCKET ENGINE`, which `process.py` starts.

SOCKET is the number of an inherited descriptor, ENGINE the process id of the engine. The process ends when its socket
is closed, and the kernel kills it when the engine ends.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys

import uvloop

from streamer.base import linux
from streamer.base.logs import configure
from streamer.base.message_socket import MessageSocket
from streamer.base.process import collect_rarely
from streamer.config import Environment
from streamer.engine.processes.fetching import Fetching
from streamer.engine.processes.messages import MAX_MESSAGE_BYTES, Setup, decode_to_process


def main(arguments: list[str]) -> None:
    """Runs the process until the engine closes the socket.

    Args:
        arguments: number of the socket's descriptor and process id of the engine, as text.

    Raises:
        ConfigError: a variable of the environment has an invalid value.
    """
    descriptor, engine = map(int, arguments)
    linux.end_with_parent(engine)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # There are no core dumps, because this process knows credentials.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = MessageSocket.adopt(descriptor)
    if (received := end.receive(MAX_MESSAGE_BYTES)) is None:
        return
    setup = decode_to_process(received[0])
    assert isinstance(setup, Setup), "the first message"
    os.environb.update(setup.environment)
    configure(logging.INFO, "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s", Environment.read())
    collect_rarely()
    uvloop.run(Fetching(end, setup).run())


if __name__ == "__main__":
    main(sys.argv[1:])
