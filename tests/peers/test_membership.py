"""The membership of engines, found over real sockets, by DNS and by Slurm's scontrol."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket

import pytest

from streamer.errors import ConfigError
from streamer.peers.lookup import parse_members
from tests.peers.hostile import head, peer, sends
from tests.peers.parts import node

pytestmark = pytest.mark.process


def free_ports(count: int) -> list[int]:
    """Returns ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.slow
async def test_engines_find_each_other_and_one_that_comes_later(tmp_path):
    """Engines with the same list find each other, and one that starts later; one that restarts is the same member."""
    ports = free_ports(3)
    listed = ",".join(f"127.0.0.1:{port}" for port in ports)
    listens = [f"127.0.0.1:{port}" for port in ports]
    async with asyncio.timeout(60), node(tmp_path / "a", listed, listen=listens[0]) as a:
        views = a.peers.follow_members()
        async with node(tmp_path / "b", listed, listen=listens[1]) as b:
            # The server process of b may have started after the first round.
            while not (view := await anext(views)):
                pass
            assert view == (b.member,)
            async with node(tmp_path / "c", listed, listen=listens[2]) as c:
                assert set(await anext(views)) == {b.member, c.member}
                assert c.member in await anext(b.peers.follow_members())
            assert await a.client.facts(c.member.address) is None
        async with node(tmp_path / "c", listed, listen=listens[2]) as c:
            facts = None
            while facts is None:
                facts = await a.client.facts(c.member.address)
            assert (facts.id, c.member.address) == (c.member.id, listens[2])
        await views.aclose()


async def test_a_name_is_looked_up(tmp_path):
    """A list `dns:NAME:PORT` has all addresses of the name with that port, and an unknown name is an OSError."""
    async with node(tmp_path / "b") as b:
        port = b.server.port
        assert f"127.0.0.1:{port}" in await parse_members(f"dns:localhost:{port}")()
        async with node(tmp_path / "a", f"dns:localhost:{port}") as a:
            while not (view := await anext(a.peers.follow_members())):
                pass
            assert view == (b.member,)
        with pytest.raises(socket.gaierror):
            await parse_members("dns:no-such-name.invalid:7070")()


# What scontrol prints (slurm-client 22.05 of Debian 12), one host a line.
SCONTROL = """#!/bin/sh
[ "$*" = 'show hostnames gpu[01-02,07],login' ] && printf 'gpu01\\ngpu02\\ngpu07\\nlogin\\n' || echo "scontrol: $*" >&2
"""


@pytest.mark.parametrize("real", [False, True])
async def test_the_nodes_of_a_slurm_job(tmp_path, monkeypatch, real):
    """A list `slurm:PORT` has the nodes of the job as scontrol expands them, with that port."""
    if not real:
        tmp_path.joinpath("scontrol").write_text(SCONTROL)
        tmp_path.joinpath("scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    elif shutil.which("scontrol") is None:
        pytest.skip("no scontrol: apt-get install slurm-client")
    else:  # it asks no controller, but does not run without a configuration
        tmp_path.joinpath("slurm.conf").write_text("ClusterName=test\nSlurmctldHost=localhost\n")
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[01-02,07],login")
    assert await parse_members("slurm:7070")() == ["gpu01:7070", "gpu02:7070", "gpu07:7070", "login:7070"]


@pytest.mark.parametrize(
    ("nodes", "script", "said"),
    [
        (None, SCONTROL, "SLURM_JOB_NODELIST is not set"),
        ("gpu[", SCONTROL, "scontrol says 'scontrol: show hostnames gpu\\['"),
        ("gpu1", None, "scontrol cannot be run"),
    ],
)
def test_what_is_no_slurm_job(tmp_path, monkeypatch, nodes, script, said):
    """A list `slurm:PORT` outside a job of Slurm, or without scontrol, is an error that says why and what to do."""
    if script is not None:
        tmp_path.joinpath("scontrol").write_text(script)
        tmp_path.joinpath("scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    if nodes is not None:
        monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
    with pytest.raises(ConfigError, match=f"{said}.*srun"):
        parse_members("slurm:7070")


@pytest.mark.parametrize(
    "members", ["", "a", "slurm:", "slurm:x", "a:b", "dns:name", "a:1,,b:2", "a:1,b", "a:99999", "::1:7070"]
)
def test_what_is_no_list_of_members(members):
    """A text that is no list of members is a ConfigError."""
    with pytest.raises(ConfigError, match=r"is not the address of a peer|has an empty address"):
        parse_members(members)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"placement": 2}, "update"),
        pytest.param({"protocol": 2}, "update", marks=pytest.mark.slow),
        pytest.param({"id": 1}, "another program", marks=pytest.mark.slow),
        (None, "another program"),
    ],
)
async def test_a_peer_of_another_version_is_no_member(tmp_path, caplog, changes, said):
    """A peer of another version, or another program at its address, is no member, which is logged once."""
    facts = {"protocol": 1, "placement": 1, "id": "x", "instance": "1", "limit_bytes": 1, "version": "9.9"}
    body = b"hello" if changes is None else json.dumps({**facts, **changes}).encode()
    answer = sends(head(content_length=len(body)), body)
    async with peer(answer) as member, node(tmp_path / "a", member.address) as a:
        views = a.peers.follow_members()
        assert await anext(views) == ()
        await views.aclose()
        texts = [record.getMessage() for record in caplog.records if record.name.startswith("streamer.peers")]
        assert len(texts) == 1
        assert member.address in texts[0]
        assert said in texts[0]
