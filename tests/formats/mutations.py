"""Damaged files: a few bytes changed, cut out, or put in."""

from __future__ import annotations

import random

# Numbers at the edges of their types, where parsers err.
_EDGES = [b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\xff" * 10, b"\n", b"{", b'"']
# JSON that is nested more deeply than its parsers follow.
_DEEP = [b"[" * 20_000, b'{"a":' * 20_000]


def mutated(content: bytes, drawn: random.Random) -> bytes:
    """Returns the content with one to eight changes."""
    out = bytearray(content)
    for _ in range(drawn.choice((1, 1, 2, 8))):
        kind, at = drawn.random(), drawn.randrange(len(out) + 1)
        if kind < 0.5 and at < len(out):
            out[at] = drawn.randrange(256)
        elif kind < 0.65:
            edge = drawn.choice(_EDGES)
            out[at : at + len(edge)] = edge
        elif kind < 0.8:
            del out[at:]
        elif kind < 0.9:
            del out[at : at + drawn.randint(1, 16)]
        elif kind < 0.98:
            out[at:at] = drawn.randbytes(drawn.randint(1, 8))
        else:
            out[at:at] = drawn.choice(_DEEP)
    return bytes(out)
