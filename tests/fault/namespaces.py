"""Network namespaces on a bridge, for links that fail. Needs root."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence

import pytest

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")


class Namespaces:
    """One namespace for each engine; address 254 on the bridge leads to a store on 127.0.0.1.

    Args:
        count: of namespaces.
    """

    def __init__(self, count: int) -> None:
        self._name = f"st{os.getpid() % 100000}"
        self._net = f"10.{(os.getpid() >> 8) % 200 + 20}.{os.getpid() % 256}"
        self.addresses = [f"{self._net}.{number + 1}" for number in range(count)]
        self.store_address = f"{self._net}.254"
        self._listener: socket.socket | None = None
        _run(f"ip link add {self._name} type bridge")
        _run(f"ip addr add {self.store_address}/24 dev {self._name}")
        _run(f"ip link set {self._name} up")
        for number, address in enumerate(self.addresses):
            name, link = self._of(number), self._link(number)
            _run(f"ip netns add {name}")
            _run(f"ip link add {link} type veth peer name eth0 netns {name}")
            _run(f"ip link set {link} master {self._name} up")
            _run(f"ip -n {name} addr add {address}/24 dev eth0")
            _run(f"ip -n {name} link set eth0 up")
            _run(f"ip -n {name} link set lo up")

    def _of(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _link(self, number: int) -> str:
        return f"{self._name}v{number}"

    def prefix(self, number: int) -> list[str]:
        """Runs a command in a namespace."""
        return ["ip", "netns", "exec", self._of(number)]

    @contextlib.contextmanager
    def partition(self, left: Sequence[int], right: Sequence[int]) -> Iterator[None]:
        """Packets between the two sides are dropped; both reach the store."""
        pairs = [(one, other) for one in left for other in right]
        for one, other in (*pairs, *((other, one) for one, other in pairs)):
            _run(f"ip -n {self._of(one)} route add blackhole {self.addresses[other]}/32")
        try:
            yield
        finally:
            for one, other in (*pairs, *((other, one) for one, other in pairs)):
                _run(f"ip -n {self._of(one)} route del blackhole {self.addresses[other]}/32")

    def forward(self, port: int) -> str:
        """The endpoint of a store on 127.0.0.1, from the namespaces."""
        self._listener = socket.create_server((self.store_address, 0), backlog=256)
        threading.Thread(target=self._accept, args=(self._listener, port), daemon=True).start()
        return f"http://{self.store_address}:{self._listener.getsockname()[1]}"

    @staticmethod
    def _accept(listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_copy, args=(one, other), daemon=True).start()

    def close(self) -> None:
        """Removes all of it."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for number in range(len(self.addresses)):
            _run(f"ip netns del {self._of(number)}")
        _run(f"ip link del {self._name}")


def _copy(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := one.recv(1 << 18):
            other.sendall(content)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
