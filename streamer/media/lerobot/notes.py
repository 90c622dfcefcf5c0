"""Notes of the facts of a data set of LeRobot, and how its records begin. No I/O."""

from __future__ import annotations

from struct import Struct

import msgspec

from streamer.formats.base import Facts, FieldSpec
from streamer.media.lerobot.info import TOLERANCE
from streamer.media.video.kinds import CLIP

# The end of the name of the field that says which rows of a window are outside of the episode.
PAD = "_is_pad"


class Notes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Notes of the facts.

    Attributes:
        rows: facts of the files of rows, as `Parquet` has them.
        windows: frames from a row to those of its windows, by feature.
        cameras: that samples have.
        tasks: by number.
        fps: frames a second.
        depths: kinds of the depth cameras.
        tolerance: how far rows and frames may be from their times, seconds.
    """

    rows: Facts
    windows: dict[str, list[int]]
    cameras: list[str]
    tasks: dict[int, str]
    fps: float
    depths: dict[str, str] = msgspec.field(default_factory=dict)
    tolerance: float = TOLERANCE

    def kind(self, camera: str) -> str:
        """Returns the kind of the field of a camera."""
        return self.depths.get(camera, CLIP)

    def fields(self) -> list[FieldSpec]:
        """The fields that are in rows, as samples have them."""
        found = []
        for spec in self.rows.fields:
            window = self.windows.get(spec.name)
            base, _, shape = spec.kind.removesuffix("]").partition("[")
            kind = spec.kind if window is None else f"{base}[{','.join(filter(None, [str(len(window)), shape]))}]"
            found.append(FieldSpec(spec.name, kind))
        pads = [FieldSpec(name + PAD, f"?[{len(window)}]") for name, window in self.windows.items()]
        return [*found, *pads, FieldSpec("task", "txt")]


def lengths_of(cameras: int) -> Struct:
    """How a record begins."""
    return Struct(f"<{1 + 2 * cameras}I")
