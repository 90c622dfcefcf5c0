"""Guided fuzzing of the wire protocol: python tests/fuzz/fuzz_wire.py -runs=1000000

Anything but a ProtocolError ends it with the input that did it.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports():
    from streamer.errors import ProtocolError
    from streamer.wire.frames import event_decoder, request_decoder


def one_input(raw: bytes) -> None:
    """Feeds both directions, in two pieces."""
    for make in (request_decoder, event_decoder):
        decoder = make()
        middle = len(raw) // 2
        try:
            for piece in (raw[:middle], raw[middle:]):
                list(decoder.feed(piece))
        except ProtocolError:
            continue
        assert len(decoder._buffer) <= len(raw)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
