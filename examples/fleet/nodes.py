"""A node of the demonstration: an engine among peers, and the rank that reads through it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from examples.bucket.store import BUCKET
from examples.fleet.train import Epoch, Rank
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import StreamerError

_LOG_CHARACTERS = 4000
# In proportion to the cache of a few dozen chunks of 256 KiB; the default is more than all of the data.
_LOOKAHEAD_BYTES = 2 << 20


class Usage(msgspec.Struct, frozen=True):
    """Where the bytes that a node's rank used came from, since the start.

    Attributes:
        disk_bytes: from the disk of the node.
        peer_bytes: from other nodes.
    """

    disk_bytes: int = 0
    peer_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.disk_bytes + other.disk_bytes, self.peer_bytes + other.peer_bytes)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.disk_bytes - other.disk_bytes, self.peer_bytes - other.peer_bytes)


class Node:
    """One node; its folder stands for its disk.

    Args:
        folder: its own, short enough for a socket in it.
        address: host:port of its peer server.
        members: the addresses of all nodes; empty: no peers.
        cache_bytes: limit of its cache.
        options: with which the engine reads the bucket.
    """

    def __init__(
        self, folder: Path, address: str, members: Sequence[str], cache_bytes: int, options: Mapping[str, object]
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self._socket = folder / "e.sock"
        self._engine: subprocess.Popen[bytes] | None = None
        self._rank: subprocess.Popen[str] | None = None
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text("demo")
        (folder / "options.json").write_text(json.dumps(options))
        (folder / "streamer.toml").write_text(
            f"[cache]\ndirectory = '{folder}/cache'\nlimit_bytes = {cache_bytes}\n"
            f"[engine]\nsocket_path = '{self._socket}'\nlookahead_bytes = {_LOOKAHEAD_BYTES}\n"
            f"[service]\nhttp = 'off'\ndrain_seconds = 1\n"
            f"[peers]\nmembers = '{','.join(members) or 'off'}'\nlisten = '{address}'\ntoken_file = '{folder}/token'\n"
            f"[[datasets]]\nurl = 's3://{BUCKET}/'\nstorage_options_file = '{folder}/options.json'\n"
        )

    def __repr__(self) -> str:
        return f"Node({self._folder.name}, running={self.is_running})"

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed."""
        return self._engine is not None

    def start(self) -> None:
        """Starts the engine, and waits until it listens.

        Raises:
            StreamerError: it has ended; the message has the end of its log.
        """
        command = [sys.executable, "-m", "streamer", "serve", "--config", str(self._folder / "streamer.toml")]
        with (self._folder / "log").open("ab") as log:
            self._engine = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._engine.stdout is not None
        if not self._engine.stdout.readline():
            raise StreamerError(f"an engine ended before it listened: {self._log()}")

    def train(self, job: str, seed: int) -> None:
        """Starts its rank, which opens the dataset and says that it is ready."""
        settings = Rank(f"unix:{self._socket}", seed)
        with (self._folder / "log").open("ab") as log:
            self._rank = subprocess.Popen(
                [sys.executable, "-m", "examples.fleet.train", msgspec.json.encode(settings).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "STREAMER_JOB": job, "STREAMER_CACHE_DIR": str(self._folder / "cache")},
            )

    def begin(self, epoch: Epoch) -> None:
        """Tells the rank to read an epoch."""
        assert self._rank is not None
        assert self._rank.stdin is not None
        self._rank.stdin.write(msgspec.json.encode(epoch).decode() + "\n")
        self._rank.stdin.flush()

    def wait_for(self, word: str) -> int:
        """Waits until the rank says a word; returns the number after it.

        Raises:
            StreamerError: the rank has ended; the message has the end of its log.
        """
        assert self._rank is not None
        assert self._rank.stdout is not None
        for line in self._rank.stdout:
            answer = json.loads(line)
            if word in answer:
                return int(answer[word])
        raise StreamerError(f"a rank has ended: {self._log()}")

    def usage(self) -> Usage:
        """What its rank has used so far."""
        found = self._statistics()
        return Usage(cast(int, found["hit_bytes"]), cast(int, found.get("peer_bytes", 0)))

    def peers(self) -> int:
        """How many others it knows that are up."""
        found = self._statistics()
        return cast(int, found["peer_members"]) - cast(int, found["peer_members_down"])

    def _statistics(self) -> dict[str, object]:
        folder = self._folder
        settings = ClientSettings(cache_dir=folder / "cache", runtime_dir=folder, engine=f"unix:{self._socket}")
        with EngineClient(settings) as client:
            return client.statistics()

    def kill(self) -> None:
        """Loses the node: engine, peer server and rank get SIGKILL; idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            os.killpg(engine.pid, signal.SIGKILL)
            engine.wait()
            assert engine.stdout is not None
            engine.stdout.close()
        rank, self._rank = self._rank, None
        if rank is not None:
            rank.kill()
            rank.communicate()

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-_LOG_CHARACTERS:]
