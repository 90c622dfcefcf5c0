"""Makes blocks of LeRobot: rows, and the packets of all cameras that the windows of these rows need.

The format `LeRobot` makes blocks with `FramePart` (`format.py`). The recoder reads the hint of a block (`recode.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec
import numpy as np

from streamer.manifest.blocks import LONGEST_HINT, Block
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.blocks import Described, block_of
from streamer.media.containers.tables import Integers
from streamer.media.lerobot.episodes import CameraVideo, Run

# A block has at most so many frames of all cameras: hints of more frames are seldom short enough.
_MAX_FRAMES = 8192


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of the bytes of a block, which the recoder of rows or of videos reads.

    Attributes:
        length: number of its bytes.
        samples: number of rows, or of samples of a camera.
        hint: hint for that recoder.
    """

    length: int
    samples: int
    hint: bytes

    @classmethod
    def from_block(cls, block: Block) -> Piece:
        """Returns the piece that a block of rows or of a camera becomes."""
        return cls(block.fetch_bytes, block.samples, block.hint)


class EpisodeHint(msgspec.Struct, frozen=True, array_like=True):
    """The hint of a block: what the recoder needs besides the bytes.

    Attributes:
        rows: pieces of rows. Rows are numbered through all of them, from 0.
        videos: a piece of each camera, after those of rows.
        spans: the samples, by the numbers of their rows in these pieces.
    """

    rows: list[Piece]
    videos: list[Piece]
    spans: list[Run]


class FramePart(msgspec.Struct, frozen=True):
    """Episodes of one file of rows that have the same videos.

    Attributes:
        record: the file of rows.
        rows: the blocks of rows of the file.
        videos: video of each camera, and the number of the frame there of each row of the file, which is -1 for rows of
            other episodes.
        windows: distances in frames from a row to those of its window, of each camera.
        reach: the most frames that any window goes back from its row, and forward.
        sample_bytes: bytes of the record of a sample besides packets.
    """

    record: ObjectRecord
    rows: list[Block]
    videos: Sequence[tuple[CameraVideo, Integers]]
    windows: Sequence[Sequence[int]]
    reach: tuple[int, int]
    sample_bytes: int

    def blocks(self, spans: Sequence[Run], chunk_bytes: int) -> Iterator[Block]:
        """Yields the samples of these episodes in blocks.

        A block has about `chunk_bytes`, or as many bytes as the longest block of rows. It is shorter where it has 8,192
        frames, or its hint would be too long. A block of rows is fetched as a whole with each block of samples that has
        rows of it, and should be at most half of `chunk_bytes`.

        Args:
            spans: the samples of the episodes.
            chunk_bytes: length of a block in bytes.
        """
        # `places` has the number of bytes before each sample.
        rows = np.concatenate([span.rows for span in spans])
        each = sum(block.fetch_bytes for block in self.rows) / max(1, sum(block.samples for block in self.rows))
        places = np.arange(len(rows)) * each
        for video, frames in self.videos:
            ends = np.cumsum(video.packets.size)
            places = places + ends[video.frames.packet[frames[rows]]]
        max_bytes = max([chunk_bytes, *(block.fetch_bytes for block in self.rows)])
        # Absolute distances count, because videos may have episodes in another order than rows.
        number = np.cumsum(np.abs(np.diff(places, prepend=places[:1]))) // max_bytes
        limit = _MAX_FRAMES // max(1, len(self.videos))
        cuts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(rows)]
        for first, stop in pairwise(cuts):
            for begin in range(first, stop, limit):
                yield from self._cut_run(spans, begin, min(begin + limit, stop))

    def _cut_run(self, spans: Sequence[Run], first: int, stop: int) -> Iterator[Block]:
        """Yields samples `[first, stop)` of these spans as a block, or as halves until hints are short enough."""
        inside = []
        at = 0
        for span in spans:
            length = span.stop - span.first
            low, high = max(first - at, 0), min(stop - at, length)
            if low < high:
                inside.append(msgspec.structs.replace(span, first=span.first + low, stop=span.first + high))
            at += length
        block = self._block(inside)
        if len(block.hint) > LONGEST_HINT and stop - first > 1:
            middle = (first + stop) // 2
            yield from self._cut_run(spans, first, middle)
            yield from self._cut_run(spans, middle, stop)
        else:
            yield block

    def _block(self, spans: Sequence[Run]) -> Block:
        """Returns the block of these samples, whatever its length: ranges of the file of rows, then of each video."""
        pieces, moved = self._rows_of(spans)
        videos = []
        for (video, frames), window in zip(self.videos, self.windows, strict=True):
            samples = video.samples(np.concatenate([frames[span.window(window)] for span in spans]))
            # Records of cameras have no key, because the samples have their own.
            described = Described("", [video.codec], video.timescale)
            videos.append(
                block_of(
                    packets=video.packets,
                    frames=video.frames,
                    samples=samples,
                    run=slice(0, len(samples.rows)),
                    described=described,
                )
            )
        count = sum(span.stop - span.first for span in spans)
        inner = [(self.record, block) for block in pieces]
        inner += [(video.record, block) for (video, _), block in zip(self.videos, videos, strict=True)]
        return Block(
            ranges=tuple(span for _, block in inner for span in block.ranges),
            samples=count,
            record_bytes=sum(block.record_bytes for block in videos) + count * self.sample_bytes,
            hint=msgspec.msgpack.encode(
                EpisodeHint(list(map(Piece.from_block, pieces)), list(map(Piece.from_block, videos)), moved)
            ),
            objects=tuple(record for record, block in inner for _ in block.ranges),
            parts=sum(block.parts for block in videos),
            part_ranges=len(videos),
        )

    def _rows_of(self, spans: Sequence[Run]) -> tuple[list[Block], list[Run]]:
        """Chooses the blocks of rows that have all rows of the windows of these samples.

        Returns:
            These blocks, and the samples by the numbers of their rows in these blocks alone.
        """
        edges = list(accumulate((block.samples for block in self.rows), initial=0))
        before, after = self.reach
        taken: dict[int, int] = {}
        moved = []
        at = 0
        for span in spans:
            low = max(span.begin, span.first - before)
            high = min(span.end, span.stop + after)
            [first, stop] = np.searchsorted(edges, [low, high - 1], "right").tolist()
            for number in range(first - 1, stop):
                if number not in taken:
                    taken[number] = at
                    at += self.rows[number].samples
            moved.append(span.shift(taken[first - 1] - edges[first - 1]))
        return [self.rows[number] for number in taken], moved


def reach_of(windows: Iterable[Sequence[int]]) -> tuple[int, int]:
    """Returns the most frames that any of these windows goes back from its row, and forward, neither below 0."""
    found = [0, *(frame for window in windows for frame in window)]
    return -min(found), max(found)
