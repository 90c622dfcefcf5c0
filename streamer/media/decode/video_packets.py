"""Videos to decode: packets, and what a decoder has to be told; those of whole mp4 and mov by their own index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from streamer.formats.reading import read_in_memory
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.frames import FrameTable
from streamer.media.containers.movie import VIDEO, read_movie
from streamer.media.containers.packets.frame_order import is_reordered, max_reorder
from streamer.media.decode.contexts import context_of, packet_of
from streamer.media.decode.deadline import Deadline

if TYPE_CHECKING:
    from av import Packet, VideoCodecContext, VideoFrame


class DisorderError(ValueError):
    """Raised where frames are shown in another order than the times of their packets say."""


class VideoPackets(msgspec.Struct, frozen=True):
    """Packets to decode.

    Attributes:
        codec: their parameters.
        packets: in the order stored.
        pts: of each packet, ticks.
        timescale: ticks of a second.
        gaps: numbers of the packets before which others are left out.
        stored: the packets as FFmpeg's demuxer gives them, with what is beside their bytes.
        open: opens a context that has decoded nothing; None: one of `codec`.
        play: decodes the frames of these times without `packets`, from the beginning of the file on.
        deadline: Limit of the time for decoding.
    """

    codec: TrackCodec
    packets: Sequence[memoryview]
    pts: Sequence[int]
    timescale: int
    gaps: Sequence[int] = ()
    stored: Sequence[Packet[Any]] = ()
    open: Callable[[], VideoCodecContext] | None = None
    play: Callable[[Collection[int]], dict[int, VideoFrame]] | None = None
    deadline: Deadline = msgspec.field(default_factory=Deadline)

    def piece(self, first: int, stop: int) -> VideoPackets:
        """Returns the video of the packets `[first, stop)`."""
        return msgspec.structs.replace(
            self, packets=self.packets[first:stop], pts=self.pts[first:stop], stored=self.stored[first:stop]
        )

    def context(self) -> VideoCodecContext:
        """Opens a context that has decoded nothing; raises ValueError if it is one of audio."""
        import av

        context = self.open() if self.open else context_of(self.codec)
        if not isinstance(context, av.VideoCodecContext):
            raise ValueError(f"{self.codec.name} is an audio codec")
        return context

    def rotation(self, frame: VideoFrame) -> int:
        """Returns the degrees counterclockwise by which a frame is turned: 0, 90, 180, 270."""
        if not self.open and not self.play:
            return self.codec.rotation
        return 0 if frame.rotation % 90 else frame.rotation % 360

    def packet(self, number: int) -> Packet[Any]:
        """Returns a packet for a context."""
        return self.stored[number] if self.stored else packet_of(self.packets[number])


def read_mp4(content: memoryview) -> tuple[VideoPackets, FrameTable, bool]:
    """Finds packets and frames of a whole mp4 or mov, and whether all of them can be shown at these times.

    Raises:
        UnreadError: it is of a kind that is not read.
        DamagedError: its boxes contradict each other.
    """
    movie = read_in_memory(read_movie(ObjectRecord("", len(content), "")), content)
    track = movie.track(VIDEO)
    packets, timescale = movie.packets(track).separate_times(track.timescale)
    edges = zip(packets.offset.tolist(), (packets.offset + packets.size).tolist(), strict=True)
    views = [content[start:stop] for start, stop in edges]
    entries = np.unique(packets.entry)
    video = VideoPackets(track.codec(int(entries[0]) if len(entries) else 0), views, packets.pts.tolist(), timescale)
    frames = FrameTable.from_packets(packets)
    is_whole = len(frames) == int((packets.shown & (packets.size > 0)).sum())
    is_timed = not (frames.ascends and max_reorder(video.codec) and is_reordered(views, video.codec))
    # Parameters that change in the middle are those of packets from there on alone.
    return video, frames, is_whole and is_timed and len(entries) <= 1
