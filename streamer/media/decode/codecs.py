"""The codecs of a dataset, so that one that cannot be decoded is an error of its opening, and not of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from streamer.manifest.blocks import decode_hints
from streamer.manifest.table import Manifest
from streamer.media.audio.sounds import PCM

# 30 us each (2026-11-26). A codec of other chunks alone is an error of the samples.
_MOST_CHUNKS = 1000


def codecs_of(manifest: Manifest) -> frozenset[str]:
    """Returns FFmpeg's names of what the samples are encoded in, of some of the chunks if there are many.

    Of formats without packets there are none, and of the numbers of WAV.
    """
    if (names_in := _NAMES.get(manifest.format)) is None:
        return frozenset()
    numbers = np.unique(np.linspace(0, manifest.chunks - 1, _MOST_CHUNKS).astype(int)).tolist()
    hints = (block.hint for number in numbers for block in decode_hints(manifest.chunk(number).hint))
    return frozenset(name for hint in hints for name in names_in(hint)) - {PCM}


# Their modules are imported here: most datasets have none of them.
def _in_clips(hint: bytes) -> list[str]:
    from streamer.media.containers.blocks import Hint
    from streamer.media.video.sound import sound_codec

    found = msgspec.msgpack.decode(hint, type=Hint)
    return [found.codec.name, *([sound_codec(found.sound)] if found.sound else [])]


def _in_windows(hint: bytes) -> list[str]:
    from streamer.media.audio.index import BlockNote

    return [msgspec.msgpack.decode(hint, type=BlockNote).sound.name]


def _in_rows(hint: bytes) -> list[str]:
    from streamer.media.lerobot.blocks import Hint

    films = msgspec.msgpack.decode(hint, type=Hint).films
    return [name for film in films for name in _in_clips(film.hint)]


_NAMES: dict[str, Callable[[bytes], Iterable[str]]] = {"video": _in_clips, "audio": _in_windows, "lerobot": _in_rows}
