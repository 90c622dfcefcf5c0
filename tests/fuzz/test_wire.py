"""The wire protocol under arbitrary bytes: the decoders, and an engine's server in-process behind fake transports."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.config import CacheConfig, DatasetConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.errors import ProtocolError
from streamer.service.admission import ServiceLimits
from streamer.service.client_connection import ClientConnection
from streamer.service.server import Server
from streamer.wire.frames import FrameDecoder, encode, event_decoder, request_decoder
from streamer.wire.messages import PROTOCOL, Failed, GetManifest, Hello, Message, Welcome

SLOW_FRAMES = 1_000_000
QUICK_FRAMES = 3_000
FRAMES_PER_PEER = 40

_spec = importlib.util.spec_from_file_location("fuzz_frames", Path(__file__).with_name("frames.py"))
frames = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(frames)


def decoded(decoder: FrameDecoder, pieces: list[bytes]) -> list[Message]:
    found = []
    for piece in pieces:
        found += decoder.feed(piece)
    return found


@pytest.mark.parametrize("make_decoder", [request_decoder, event_decoder])
@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_messages_or_a_protocol_error(make_decoder, raw):
    """Any bytes are messages or a ProtocolError to both decoders, which keep at most what they were fed."""
    decoder = make_decoder()
    try:
        decoded(decoder, [raw])
    except ProtocolError:
        return
    assert len(decoder._buffer) <= len(raw)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 30), max_size=30))
def test_how_the_bytes_are_cut_does_not_matter(seed, cuts):
    """A decoder gives the same messages however their bytes are cut into pieces."""
    drawn = random.Random(seed)
    sent = [frames.message(drawn, ("0" * 32,)) for _ in range(5)]
    raw = b"".join(map(encode, sent))
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(raw[at : at + cut])
        at += cut
    assert decoded(request_decoder(), [*pieces, raw[at:]]) == sent


class Wire(asyncio.Transport):
    """Stands for the transport of a peer's socket: decodes what the server sends, and keeps the types of the events.

    Unlike a socket it buffers nothing, so that writing never pauses, and it does not call `connection_lost`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[type[Message]] = []
        self.closed = False
        self._decoder = event_decoder()

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        self.events += [type(event) for event in self._decoder.feed(data)]

    def set_write_buffer_limits(self, high=None, low=None):
        """Ignores the limits, because nothing is buffered."""

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        """Does nothing: the fuzzer sends when it is told to."""

    def resume_reading(self):
        """Does nothing: the fuzzer sends when it is told to."""

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close


async def storm(folder: Path, count: int) -> tuple[int, int]:
    """Sends so many frames from ever new peers to a living engine; returns (peers, memory grown in bytes)."""
    random_bytes = np.random.default_rng(5)
    for number in range(8):
        path = folder / "data" / "a" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random_bytes.bytes(200_000))
    config = EngineConfig(
        cache=CacheConfig(directory=folder / "cache", limit_bytes=8 << 20),
        datasets=(DatasetConfig(url=f"{folder}/data/"),),
        grace_seconds=None,
        settle_seconds=0.0,
    )
    limits = ServiceLimits(clients=64, answer_bytes=4 << 20, request_bytes=1 << 20, schedule_bytes=1 << 20)
    async with Engine(config) as engine, asyncio.TaskGroup() as tasks:
        digest = await engine.manifest(GetManifest(0, [f"{folder}/data/"], "auto"), lambda *step: None)
        server = Server(config, engine, tasks, lambda: None, limits=limits)
        drawn, peers, grown = random.Random(1), 0, 0
        before = None
        while count > 0:
            sent = min(count, FRAMES_PER_PEER)
            count -= sent
            peers += 1
            await one_peer(server, drawn, digest, sent)
            if peers == 50:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if before is not None:
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        await greeting(server)
        assert not engine.sessions
        await server.finish(5.0)
        return peers, grown


async def one_peer(server: Server, drawn: random.Random, digest: str, count: int) -> None:
    """Greets the server and sends it `count` frames, over a new connection each time the server closes one."""
    wire, peer = Wire(), ClientConnection(server)
    peer.connection_made(wire)
    peer.data_received(encode(Hello(PROTOCOL, "fuzz", os.getpid())))
    for _ in range(count):
        peer.data_received(frames.frame(drawn, (digest,)))
        if wire.closed:  # sent away: the rest of its frames comes from a new one
            peer.connection_lost(None)
            wire, peer = Wire(), ClientConnection(server)
            peer.connection_made(wire)
            peer.data_received(encode(Hello(PROTOCOL, "fuzz", os.getpid())))
        if drawn.random() < 0.2:
            await asyncio.sleep(0)
    peer.connection_lost(None)
    await asyncio.sleep(0)


async def greeting(server: Server) -> None:
    """Checks that the engine still welcomes a peer that greets it properly."""
    wire, peer = Wire(), ClientConnection(server)
    peer.connection_made(wire)
    peer.data_received(encode(Hello(PROTOCOL, "fuzz", os.getpid())))
    assert wire.events == [Welcome]
    assert Failed not in wire.events
    peer.connection_lost(None)


async def test_an_engine_lives_through_a_storm_of_frames(tmp_path, caplog):
    """An engine takes broken and senseless frames of many peers without a traceback, and answers afterwards."""
    await storm(tmp_path, QUICK_FRAMES)
    assert "Traceback" not in caplog.text
    assert "the engine failed" not in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_million_frames(tmp_path, caplog, capsys):
    """A million odd frames neither end the engine nor grow its memory by 64 MiB."""
    caplog.set_level("CRITICAL")
    peers, grown = await storm(tmp_path, SLOW_FRAMES)
    with capsys.disabled():
        print(f"\n{SLOW_FRAMES} frames from {peers} peers and more: resident memory grew by {grown / 1e6:.1f} MB")
    assert grown < 64 << 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_atheris_finds_nothing(tmp_path):
    """A million inputs that atheris guides raise nothing but ProtocolError in the decoders."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install 'streamer-data[fuzz]'")
    script = Path(__file__).with_name("fuzz_wire.py")
    command = [sys.executable, str(script), f"-runs={SLOW_FRAMES}", "-max_len=4096", "-rss_limit_mb=1024", "-seed=1"]
    found = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    shutil.rmtree(tmp_path, ignore_errors=True)
    assert found.returncode == 0, found.stderr[-3000:]
    assert f"Done {SLOW_FRAMES} runs" in found.stderr
