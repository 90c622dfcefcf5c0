"""Computes how many packets are decoded for the frames of clips, from the manifest alone, and what would be cheaper.

The format `Video` returns it as its `DecodeCost` (`format.py`), for the stall report and for commands.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.manifest.blocks import decode_hints
from streamer.manifest.table import Manifest
from streamer.media.containers.blocks import Needed, read_hint
from streamer.media.containers.clips import FrameTable
from streamer.media.containers.tables import Integers, Packets

# Advice is given if more than this share of the decoded packets is not used. Below it other settings gain little.
_WASTED_SHARE = 0.7
# The estimate for `clips_per_sample=` is made for so many clips in a sample.
_GROUP = 4
# A mean is taken of so many chunks: 0.1 s for 16 chunks of 8 MiB (2026-11-26).
_MAX_CHUNKS = 16

Numbers = NDArray[np.float64]


class ClipCost(msgspec.Struct, frozen=True):
    """What decoding a sample of clips takes, or the means of several samples; see `formats.base.DecodeCost`.

    Attributes:
        packets: packets that are decoded, from a key frame on.
        wanted: frames of the sample, each counted once.
        span: frames of the video from the first to the last frame of the sample.
        pixels: pixels of a frame.
        grouped: packets per clip if four clips that follow each other were one sample, or 0 if it is not known.
        key_seconds: median time between key frames in seconds, or 0 if it is not known.
    """

    packets: float
    wanted: float
    span: float
    pixels: float
    grouped: float
    key_seconds: float

    @property
    def work(self) -> float:
        """Pixels of the decoded packets."""
        return self.packets * self.pixels

    @property
    def wasted(self) -> float:
        """The share of the decoded packets whose frames are not in the sample."""
        return 1 - self.wanted / self.packets

    def __str__(self) -> str:
        keys = f"; key frames are {self.key_seconds:.2g} s apart" if self.key_seconds else ""
        return (
            f"{self.packets:.0f} packets for {self.wanted:.0f} of {self.span:.0f} frames, {self.wasted:.0%} thrown "
            f"away{keys}"
        )

    @property
    def cheaper(self) -> str:
        """The settings that decode fewer packets, each with the number of packets; "" if there are none."""
        ways = [
            ('start="key": {:.0f} packets', self.span),
            (f"clips_per_sample={_GROUP}: {{:.0f}} a clip", self.grouped),
            # A clip begins in the middle of a GOP on average.
            (f"videos encoded with ffmpeg -g {self.span:.0f}: about {{:.0f}}", self.span + (self.span - 1) / 2),
        ]
        return ", ".join(text.format(packets) for text, packets in ways if 0 < packets < self.packets - 0.5)

    @property
    def advice(self) -> str:
        """What to do where decoding is too slow; "" where too little is thrown away."""
        return f"clips: {self}; cheaper: {self.cheaper}" if self.wasted > _WASTED_SHARE else ""


def sample_cost(manifest: Manifest, ordinal: int) -> ClipCost:
    """Returns the cost of decoding the sample of this ordinal."""
    chunk = manifest.chunk(int(manifest.locate(np.array([ordinal]))[0][0]))
    place = ordinal - chunk.first_sample
    return _mean(_costs_in(chunk.hint)[place : place + 1])


def mean_cost(manifest: Manifest) -> ClipCost:
    """Returns the mean cost of the samples of a dataset, or of 16 of its chunks if it has more."""
    numbers = np.unique(np.linspace(0, manifest.chunks - 1, _MAX_CHUNKS).astype(int)).tolist()
    return _mean(np.concatenate([_costs_in(manifest.chunk(number).hint) for number in numbers]))


def _mean(costs: Numbers) -> ClipCost:
    """Returns the mean of each column of `block_costs` without NaN; 0 for a column of NaN alone."""
    known = ~np.isnan(costs)
    means = np.where(known, costs, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return ClipCost(*means.tolist())


def _costs_in(hint: bytes) -> Numbers:
    """Returns the costs of the samples of a chunk, from its hint; see `block_costs`."""
    return np.concatenate([block_costs(block.hint) for block in decode_hints(hint)])


def block_costs(content: bytes) -> Numbers:
    """Returns the costs of the samples of a block, from its hint.

    The columns of (samples, 6) are the attributes of `ClipCost`; NaN stands for unknown. Where clips are drawn, the
    clips in the middle of their places count.
    """
    hint, needed = read_hint(content)
    rows = needed.rows
    if needed.draws:
        rows = []
        for row, draws in zip(needed.rows, needed.draws, strict=True):
            base, number = draws.T
            rows.append(row[hint.pattern.find_frames(needed.pts[row], base + number // 2).ravel()])
    flat = np.concatenate(rows)
    lengths = np.array(list(map(len, rows)))
    begins = np.cumsum(lengths) - lengths
    sample = np.repeat(np.arange(len(rows)), lengths)
    distinct = np.unique(sample * len(needed.size) + flat) // len(needed.size)
    frames = _frames(needed, flat)
    starts = np.zeros(len(needed.size), np.int64)
    starts[frames.packet] = frames.start
    start = np.minimum.reduceat(starts[flat], begins)
    stop = np.maximum.reduceat(flat, begins) + 1
    earliest, latest = (of.reduceat(needed.pts[flat], begins) for of in (np.minimum, np.maximum))
    costs = np.full((len(rows), 6), np.nan)
    costs[:, 0] = stop - start
    costs[:, 1] = np.bincount(distinct, minlength=len(rows))
    costs[:, 2] = np.searchsorted(frames.pts, latest, "right") - np.searchsorted(frames.pts, earliest)
    costs[:, 3] = hint.codec.width * hint.codec.height
    if len(rows) >= _GROUP and int(lengths[0]) == hint.pattern.count:
        # A sample is grouped with those behind it; the last ones form one group.
        first = np.minimum(np.arange(len(rows)), len(rows) - _GROUP)
        together = first[:, None] + np.arange(_GROUP)
        taken = stop[together].max(axis=1) - start[together].min(axis=1)
        missing = _count_absent(needed, frames, earliest[together].min(axis=1), latest[together].max(axis=1))
        costs[:, 4] = (taken + missing / max(1.0, np.median(needed.duration[frames.packet]))) / _GROUP
    keys = np.unique(needed.pts[needed.key])
    apart = np.diff(keys)
    # Distances over packets that the block lacks are left out: there may be key frames in what is missing.
    apart = apart[_count_absent(needed, frames, keys[:-1], keys[1:]) < apart / 2]
    costs[:, 5] = np.median(apart) / hint.timescale if len(apart) else np.nan
    return costs


def _frames(needed: Needed, wanted: Integers) -> FrameTable:
    """Returns the frames that the packets of a block show.

    Args:
        needed: the packets.
        wanted: numbers of the packets whose frames are in samples.
    """
    shown = needed.duration > 0
    shown[wanted] = True
    entry = np.zeros(len(shown), np.int64)
    return FrameTable.from_packets(
        Packets(
            offset=needed.start,
            size=needed.size,
            pts=needed.pts,
            duration=needed.duration,
            key=needed.key,
            shown=shown,
            entry=entry,
        )
    )


def _count_absent(needed: Needed, frames: FrameTable, start: Integers, stop: Integers) -> Integers:
    """Returns how many ticks between these times, (N,), have frames that the block lacks because no clip needs them."""
    before = np.append(0, np.cumsum(np.maximum(frames.duration - needed.duration[frames.packet], 0)))
    ticks: Integers = before[np.searchsorted(frames.pts, stop)] - before[np.searchsorted(frames.pts, start)]
    return ticks
