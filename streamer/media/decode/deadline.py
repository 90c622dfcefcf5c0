"""Ends the decoding of files that take minutes, as crafted ones do whose few bytes are many large frames."""

from __future__ import annotations

import io
import time

# A clip of a video of 1920x1080 takes some 0.1 s. A full decode, where nothing else says the order of frames, makes
# about 20,000 frames of 1280x720 in this time (2026-11-28).
MAX_SECONDS = 60.0
# A long video may have more frames: an hour of 1920x1080 at 100 kbit/s is 45 MB, and takes some 400 s to decode. What
# a header says of the length does not count, because that of a crafted file says anything.
_SECONDS_PER_MB = 10.0


class Deadline:
    """Limits the time that the decoding of one sample takes.

    It is CPU time of the thread, in which FFmpeg decodes: a busy or suspended machine refuses nothing.

    Args:
        stored_bytes: Length of what is decoded: a long file has more time.
    """

    def __init__(self, stored_bytes: int = 0) -> None:
        self._seconds = MAX_SECONDS + _SECONDS_PER_MB * stored_bytes / 1e6
        self._end = time.thread_time() + self._seconds

    def check(self) -> None:
        """Raises ValueError once the time is used up."""
        if time.thread_time() > self._end:
            raise ValueError(
                f"decoding takes more than {self._seconds:.3g} s of CPU: the file is damaged or crafted, or it is long "
                "and has to be cut, or converted so that clips of it are decoded alone (ffmpeg -i FILE OUT.mp4, audio "
                "as OUT.flac)"
            )


class LimitedReader(io.BytesIO):
    """Reads bytes for FFmpeg's demuxers, until the deadline."""

    def __init__(self, content: memoryview, deadline: Deadline) -> None:
        super().__init__(content)
        self._deadline = deadline

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads so many bytes; raises ValueError behind the deadline."""
        self._deadline.check()
        return super().read(size)
