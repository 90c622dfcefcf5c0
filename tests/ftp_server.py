"""A small FTP server over a folder, for tests of ftp:// with fsspec's own client."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LINE_BYTES = 4096


class FtpServer(socketserver.ThreadingTCPServer):
    """Serves the files below a folder to any number of clients, as RFC 959 and RFC 3659 say, on a port of loopback.

    Args:
        folder: the folder.
        replaces: whether RNTO replaces a file that exists, as vsftpd does; IIS refuses it.

    Attributes:
        port: port that the kernel has chosen.
        logins: number of logins so far.
        password: password that a login must have.
        broken: number of the next reads whose connection is cut in the middle.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folder: Path, *, replaces: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.folder = folder
        self.replaces = replaces
        self.port: int = self.server_address[1]
        self.logins = 0
        self.password = "word"
        self.broken = 0


class _Client(socketserver.StreamRequestHandler):
    """Answers the commands of one client, in their order."""

    server: FtpServer

    def setup(self) -> None:
        super().setup()
        # Clients send ABOR as urgent data, of which the last byte would be left out.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        self._passive: socket.socket | None = None
        self._start = 0
        self._renamed = Path()
        self._is_open = True

    def handle(self) -> None:
        self._say("220 ready")
        while self._is_open and (line := self.rfile.readline(_LINE_BYTES)):
            command, _, argument = line.decode().strip().lstrip("\xff\xf2\xf4").partition(" ")
            answer: Callable[[str], None] | None = getattr(self, f"do_{command.lower()}", None)
            if answer is None:
                self._say("502 not implemented")
            else:
                answer(argument)

    def finish(self) -> None:
        if self._passive is not None:
            self._passive.close()
        super().finish()

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def _path(self, name: str) -> Path:
        return self.server.folder / name.removeprefix(f"ftp://127.0.0.1:{self.server.port}").lstrip("/")

    def do_user(self, _name: str) -> None:
        self._say("331 password?")

    def do_pass(self, password: str) -> None:
        self.server.logins += 1
        self._say("230 welcome" if password == self.server.password else "530 login incorrect")

    def do_type(self, _kind: str) -> None:
        self._say("200 ok")

    def do_quit(self, _nothing: str) -> None:
        self._is_open = False
        self._say("221 bye")

    def do_abor(self, _nothing: str) -> None:
        self._say("226 no transfer")

    def do_rest(self, start: str) -> None:
        self._start = int(start)
        self._say("350 ok")

    def do_pasv(self, _nothing: str) -> None:
        if self._passive is not None:
            self._passive.close()
        self._passive = socket.create_server(("127.0.0.1", 0))
        high, low = divmod(self._passive.getsockname()[1], 256)
        self._say(f"227 (127,0,0,1,{high},{low})")

    def do_retr(self, name: str) -> None:
        start, self._start = self._start, 0
        path = self._path(name)
        if not path.is_file():
            self._say("550 no such file")
            return
        content = path.read_bytes()[start:]
        if self.server.broken:
            self.server.broken -= 1
            self._is_open = False
            self._send(content[: len(content) // 2], says_end=False)
        else:
            self._send(content)

    def do_stor(self, name: str) -> None:
        start, self._start = self._start, 0
        path = self._path(name)
        with self._transfer() as data, path.open("r+b" if start else "wb") as file:
            file.seek(start)
            while received := data.recv(1 << 16):
                file.write(received)
        self._say("226 done")

    def do_mlsd(self, name: str) -> None:
        path = self._path(name)
        if not path.is_dir():
            self._say("550 no such folder")
            return
        lines = []
        for each in sorted(path.iterdir()):
            kind = "dir" if each.is_dir() else "file"
            lines.append(f"type={kind};size={each.stat().st_size};modify=20260101000000; {each.name}\r\n")
        self._send("".join(lines).encode())

    def do_mkd(self, name: str) -> None:
        self._path(name).mkdir()
        self._say(f'257 "{name}"')

    def do_rnfr(self, name: str) -> None:
        self._renamed = self._path(name)
        self._say("350 to?" if self._renamed.exists() else "550 no such file")

    def do_rnto(self, name: str) -> None:
        target = self._path(name)
        if target.exists() and not self.server.replaces:
            self._say("550 exists")
            return
        self._renamed.replace(target)
        self._say("250 done")

    def do_dele(self, name: str) -> None:
        path = self._path(name)
        if not path.is_file():
            self._say("550 no such file")
            return
        path.unlink()
        self._say("250 done")

    @contextmanager
    def _transfer(self) -> Iterator[socket.socket]:
        """Opens the data connection; closes it at the end."""
        assert self._passive is not None
        self._say("150 now")
        with self._passive as listener:
            self._passive = None
            data, _ = listener.accept()
        with data:
            yield data

    def _send(self, content: bytes, *, says_end: bool = True) -> None:
        """Sends all of `content`, or what the client wants of it, then says so."""
        try:
            with self._transfer() as data:
                data.sendall(content)
        except ConnectionError:  # the client has enough
            self._say("426 aborted")
            return
        if says_end:
            self._say("226 done")


@contextmanager
def serve_ftp(folder: Path, *, replaces: bool = True) -> Iterator[FtpServer]:
    """Serves a folder until the block ends; see `FtpServer`."""
    server = FtpServer(folder, replaces=replaces)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        yield server
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
