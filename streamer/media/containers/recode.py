"""Makes the records of clips: takes their packets out of the fetched bytes of a block, in a recoder. Decodes nothing.

The formats of `media/video/` and `media/lerobot/` name `ClipRecoder` as their recoder, or as a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np

from streamer.base.extras import require_extra
from streamer.errors import RecodeError
from streamer.formats.base import Records
from streamer.media.containers.blocks import ClipHint, Needed, read_hint
from streamer.media.containers.packet_checks import check_key, check_order
from streamer.media.containers.records import ClipAudioHeader, ClipHeader, encode_head, encode_part
from streamer.media.containers.tables import Integers

# Given the bytes of a block and the hint of its audio, returns the pieces of audio that samples share, which of them
# each sample uses, (samples, 1, 2), and what the head of each sample says of its audio.
FindAudio: TypeAlias = Callable[[memoryview, bytes], tuple[list[bytes], Integers, list[ClipAudioHeader]]]


class ClipRecoder:
    """The recoder of videos: makes records of the blocks of clips, and reads tables of segments for the survey.

    Args:
        names: names of the fields that clips have, which columns of a table of segments cannot have.
        find_audio: finds the audio of a block (`media/video/clip_audio.py`). None means that clips have no audio.
    """

    def __init__(self, names: Sequence[str] = (), find_audio: FindAudio | None = None) -> None:
        self._names = names
        self._find_audio = find_audio

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes the records of a block, or reads a table of segments if `samples` is negative, as a survey asks for it.

        Args:
            content: the bytes of the block, or the whole table.
            samples: number of samples of the block.
            hint: a `ClipHint`, or the url of the table.

        Raises:
            RecodeError: the hint is damaged or does not fit the block, frames are shown in another order than their
                times say, a key packet is none (intra refresh), or the table cannot be read.
            ConfigError: pyarrow is not installed, which reads tables.
        """
        if samples < 0:
            with require_extra("reading a table of segments", field="format"):
                from streamer.media.containers.segment_table import read_segments
            return read_segments(content, hint.decode(), self._names)
        try:
            described, needed = read_hint(hint)
        except (ValueError, msgspec.MsgspecError) as error:
            raise RecodeError(f"the hint of a block is damaged: {error}") from error
        is_inside = needed.start.min() >= 0 and (needed.start + needed.size).max() <= len(content)
        if len(needed.rows) != samples or not is_inside:
            raise RecodeError(f"a hint of {len(needed.rows)} samples, whose packets are not in {len(content)} bytes")
        edges = zip(needed.start.tolist(), (needed.start + needed.size).tolist(), strict=True)
        packets = [content[start:stop] for start, stop in edges]
        for first in np.unique(needed.first).tolist():
            check_key(packets[first], described.codec)
        check_order(packets, needed.pts.tolist(), described.codec, np.flatnonzero(needed.behind_gap).tolist())
        cuts = needed.parts()
        parts = _parts(described, needed, packets, cuts)
        ranges = np.stack(
            [np.searchsorted(cuts, needed.first, "right") - 1, np.searchsorted(cuts, needed.stop, "left")], axis=-1
        )[:, None]
        audio_headers: Sequence[ClipAudioHeader | None] = [None] * samples
        if self._find_audio:
            pieces, used, audio_headers = self._find_audio(content, described.audio)
            if len(audio_headers) != samples:
                raise RecodeError(f"a hint of {samples} samples, of which {len(audio_headers)} have audio")
            ranges = np.concatenate([ranges, used + len(parts)], axis=1)
            parts += pieces
        heads = [_head(described, needed, number, audio) for number, audio in enumerate(audio_headers)]
        return Records(
            parts=heads,
            lengths=np.array(list(map(len, heads)), np.int64),
            shared_parts=parts,
            part_lengths=np.array(list(map(len, parts)), np.int64),
            part_ranges=ranges.astype(np.int64),
        )


def _parts(described: ClipHint, needed: Needed, packets: list[memoryview], cuts: np.ndarray) -> list[bytes]:
    """Returns the parts of a block; `cuts` are their first packets, closed by the number of packets."""
    pts = needed.pts.tolist()
    key = needed.key.tolist()
    behind_gap = needed.behind_gap.tolist()
    return [
        encode_part(
            pts[first:stop], packets[first:stop], described.codec if key[first] else None, behind_gap=behind_gap[first]
        )
        for first, stop in pairwise(cuts.tolist())
    ]


def _head(described: ClipHint, needed: Needed, number: int, audio: ClipAudioHeader | None) -> bytes:
    """Returns the bytes of the head of sample `number` of a block."""
    row = needed.rows[number]
    draws = needed.draws[number].tobytes() if needed.draws else b""
    pts = needed.pts[row].tobytes()
    duration = needed.duration[row].tobytes()
    extra = needed.extra[number] if needed.extra else b""
    return encode_head(
        ClipHeader(
            key=described.key,
            timescale=described.timescale,
            pts=pts,
            duration=duration,
            pattern=described.pattern,
            draws=draws,
            extra=extra,
            audio=audio,
        )
    )
