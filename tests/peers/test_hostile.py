"""Peers that send what they should not: each is refused, and no wrong byte is used."""

from __future__ import annotations

import asyncio

import pytest

from streamer.peers.client import Refusal
from tests.peers.hostile import head, peer, sends, sends_for_ever, silent
from tests.peers.parts import asked, asker, fetch

LENGTH = 100_000
BODY = b"x" * LENGTH
ANSWERS = {
    "cut off": (sends(head(content_length=LENGTH), BODY[:-1]), Refusal.DOWN),
    "cut off in its head": (sends(b"HTTP/1.1 200 OK\r\ncontent-le"), Refusal.WRONG),
    "closed": (sends(), Refusal.DOWN),
    "another length": (sends(head(content_length=LENGTH - 1), BODY[:-1]), Refusal.WRONG),
    "longer": (sends(head(content_length=LENGTH + 1), BODY + b"x"), Refusal.WRONG),
    "no length": (sends(head(), BODY), Refusal.WRONG),
    "no body": (sends(head(content_length=0)), Refusal.WRONG),
    "chunked": (sends(head(transfer_encoding="chunked"), b"5\r\nxxxxx\r\n0\r\n\r\n"), Refusal.WRONG),
    "both lengths": (sends_for_ever(head(content_length=LENGTH, transfer_encoding="chunked"), b"5\r\nxxxxx\r\n"), None),
    "endless": (
        sends_for_ever(head(transfer_encoding="chunked"), b"1000\r\n" + b"x" * 4096 + b"\r\n"),
        Refusal.WRONG,
    ),
    "endless head": (sends_for_ever(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 100), Refusal.WRONG),
    "endless refusal": (sends_for_ever(head(404, transfer_encoding="chunked"), b"5\r\nxxxxx\r\n" * 99), Refusal.WRONG),
    "a range": (sends(head(206, content_length=LENGTH), BODY), Refusal.WRONG),
    "a redirect": (sends(head(307, location="http://127.0.0.1:1/", content_length=0)), Refusal.WRONG),
    "an error": (sends(head(500, content_length=0)), Refusal.WRONG),
    "garbage": (sends(b"\x00\x01\x02" * 1000), Refusal.WRONG),
    "garbage that is long": (sends_for_ever(b"", b"\x16\x03\x01" * 1000), Refusal.WRONG),
    "too much": (sends(head(content_length=LENGTH), BODY + b"y" * 1000), b"x" * LENGTH),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_what_is_no_chunk_is_refused(name):
    """An answer of another length, an endless body or garbage is refused as a chunk, and holds no memory afterwards."""
    answer, wanted = ANSWERS[name]
    async with asker() as b, peer(answer) as member, asyncio.timeout(20):
        found = await fetch(b, member, asked(1, LENGTH))
        assert found in ((Refusal.WRONG, Refusal.DOWN) if wanted is None else (wanted,))
        assert b.memory.gate.used == 0


async def test_thirty_wrong_answers_leave_a_peer_out(caplog):
    """A peer that has given thirty wrong answers is left out, which is logged once."""
    async with asker() as b, peer(sends(head(500, content_length=0))) as member:
        for _ in range(29):
            assert await fetch(b, member, asked(1, LENGTH)) is Refusal.WRONG
        assert b.client.is_up(member)
        b.client.reject(member)
        assert not b.client.is_up(member)
        assert b.client.table()[0]["state"] == "left out"
        assert sum("left out" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("answer", [silent, sends_for_ever(head(content_length=LENGTH), b"x", pause=0.05)])
async def test_a_peer_that_is_silent_or_slow_is_late(answer):
    """A peer that sends nothing or too slowly is late after 250 ms, and is down after a second of lost races."""
    async with asker() as b, peer(answer) as member:
        loop, lates = asyncio.get_running_loop(), []
        while b.client.is_up(member):
            late, begun = asyncio.Event(), loop.time()
            asking = asyncio.ensure_future(b.client.fetch_chunk(member, asked(1, LENGTH), late))
            await late.wait()
            lates.append(loop.time() - begun)
            asking.cancel()  # the store has sent it
            with pytest.raises(asyncio.CancelledError):
                await asking
        assert min(lates) >= 0.2
        assert 2 <= len(lates) <= 5
        assert b.client.statistics()["peer_hedges"] == len(lates)
        assert b.memory.gate.used == 0
