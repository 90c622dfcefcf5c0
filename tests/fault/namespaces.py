"""Network namespaces on a bridge, for links that fail. Needs root."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

_made = itertools.count()
_HOSTS = Path("/etc/netns")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")


class Namespaces:
    """One namespace for each engine; address 254 on the bridge leads to a store on 127.0.0.1.

    Args:
        count: of namespaces.
    """

    def __init__(self, count: int) -> None:
        # The kernel removes those of an earlier test later.
        number = os.getpid() + 1000 * next(_made)
        self._name = f"st{number % 1_000_000}"
        self._net = f"10.{(number >> 8) % 200 + 20}.{number % 256}"
        self.addresses = [f"{self._net}.{number + 1}" for number in range(count)]
        self.store_address = f"{self._net}.254"
        self._listener: socket.socket | None = None
        # In a namespace of its own: a packet filter of this machine (Docker's) would drop what passes the bridge.
        switch = f"{self._name}-switch"
        _run(f"ip netns add {switch}")
        _run(f"ip -n {switch} link add bridge type bridge")
        _run(f"ip -n {switch} link set bridge up")
        _run(f"ip link add {self._name} type veth peer name store netns {switch}")
        _run(f"ip addr add {self.store_address}/24 dev {self._name}")
        _run(f"ip link set {self._name} up")
        _run(f"ip -n {switch} link set store master bridge up")
        for number, address in enumerate(self.addresses):
            name, link = self._of(number), f"link{number}"
            _run(f"ip netns add {name}")
            _run(f"ip -n {switch} link add {link} type veth peer name eth0 netns {name}")
            _run(f"ip -n {switch} link set {link} master bridge up")
            _run(f"ip -n {name} addr add {address}/24 dev eth0")
            _run(f"ip -n {name} link set eth0 up")
            _run(f"ip -n {name} link set lo up")

    def _of(self, number: int) -> str:
        return f"{self._name}-{number}"

    def list_name(self, name: str, addresses: Sequence[str]) -> None:
        """In all namespaces a name has these addresses from now on; before the first command runs there."""
        lines = "".join(f"{address} {name}\n" for address in addresses)
        for number in range(len(self.addresses)):
            folder = _HOSTS / self._of(number)
            folder.mkdir(parents=True, exist_ok=True)
            # In place: `ip netns exec` mounts this very file over /etc/hosts.
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")

    def prefix(self, number: int) -> list[str]:
        """Runs a command in a namespace."""
        return ["ip", "netns", "exec", self._of(number)]

    @contextlib.contextmanager
    def partition(self, left: Sequence[int], right: Sequence[int]) -> Iterator[None]:
        """Packets between the two sides are dropped; both reach the store."""
        pairs = [(one, other) for one in left for other in right]
        both = [*pairs, *((other, one) for one, other in pairs)]
        for one, other in both:
            # To a station that does not exist: a route that drops would fail the sender at once.
            dropped = f"{self.addresses[other]} lladdr 02:00:00:00:00:01 dev eth0 nud permanent"
            _run(f"ip -n {self._of(one)} neigh replace {dropped}")
        try:
            yield
        finally:
            for one, other in both:
                _run(f"ip -n {self._of(one)} neigh del {self.addresses[other]} dev eth0")

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
        """Removes all namespaces and the bridge."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for number in range(len(self.addresses)):
            _run(f"ip netns del {self._of(number)}")
            shutil.rmtree(_HOSTS / self._of(number), ignore_errors=True)
        _run(f"ip netns del {self._name}-switch")


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
