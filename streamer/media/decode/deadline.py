"""Ends the decoding of files that take minutes, as crafted ones do whose few bytes are many large frames."""

from __future__ import annotations

import io
import time

# A clip of a video of 1920x1080 takes some 0.1 s. A full decode, where nothing else says the order of frames, makes
# about 20,000 frames of 1280x720 in this time (2026-11-28).
MAX_SECONDS = 60.0


class Deadline:
    """Limits the time that the decoding of one sample takes.

    It is CPU time of the thread, in which FFmpeg decodes: a busy or suspended machine refuses nothing.
    """

    def __init__(self) -> None:
        self._end = time.thread_time() + MAX_SECONDS

    def check(self) -> None:
        """Raises ValueError once the time is used up."""
        if time.thread_time() > self._end:
            raise ValueError(
                f"decoding takes more than {MAX_SECONDS:g} s of CPU: the file is damaged or crafted, or it is long and "
                "has to be cut, or converted so that clips of it are decoded alone (ffmpeg -i FILE OUT.mp4, audio as "
                "OUT.flac)"
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
