"""Keeps the means of series over time in several resolutions, the newest bins of each. No I/O.

Used by `history.py`, and for its limits by `service/web.py`. A *level* is one resolution: bins of `STEPS[level]`
seconds, of which the newest `POINTS` are kept. Bins are numbered from 1970.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Bins of a level.
POINTS = 450
# Seconds of a bin of each level. The levels keep the newest 15 min, 1 h, 4 h, 16 h, 64 h, 11 d and 43 d.
STEPS = (2, 8, 32, 128, 512, 2048, 8192)
DEFAULT_SECONDS = STEPS[0] * POINTS
MAX_SECONDS = STEPS[-1] * POINTS

_EACH_LEVEL = np.arange(len(STEPS))
_STEPS = np.array(STEPS)

Row = npt.NDArray[np.float64]


def choose_level(seconds: float) -> int:
    """Returns the finest level that goes back so many seconds, or the coarsest if none does."""
    return next((level for level, step in enumerate(STEPS) if step * POINTS >= seconds), len(STEPS) - 1)


class Rings:
    """Keeps the means of some series at every level. The mean of a bin without a value is NaN.

    Args:
        series: number of series.
        dtype: type in which the means are kept.

    Attributes:
        values: the means, (levels, POINTS, series); bin n is in place n % POINTS.
        bins: number of the bin in each place, int64 (levels, POINTS); -1 where there is none yet.
    """

    def __init__(self, series: int, dtype: type[np.floating]) -> None:
        self.values = np.full((len(STEPS), POINTS, series), np.nan, dtype)
        self.bins = np.full((len(STEPS), POINTS), -1, np.int64)
        self._running = np.full(len(STEPS), -1)
        self._total = np.zeros((len(STEPS), series))
        self._count = np.zeros((len(STEPS), series))

    def __repr__(self) -> str:
        return f"Rings(series={self.values.shape[2]}, newest={int(self.bins.max()) * STEPS[0]})"

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(column.nbytes for column in (self.values, self.bins, self._running, self._total, self._count))

    def add(self, at_seconds: int, row: Row) -> None:
        """Adds one value of each series to the bins of a time.

        Args:
            at_seconds: Unix time, not before that of the last call.
            row: values by number of the series; NaN where one is not known.
        """
        bins = at_seconds // _STEPS
        new = bins != self._running
        self._running = bins
        self._total[new] = 0.0
        self._count[new] = 0.0
        known = np.isfinite(row)
        self._total += np.where(known, row, 0.0)
        self._count += known
        place = bins % POINTS
        mean = np.divide(self._total, self._count, out=np.full_like(self._total, np.nan), where=self._count > 0)
        self.values[_EACH_LEVEL, place] = mean
        self.bins[_EACH_LEVEL, place] = bins

    def clear(self, series: int) -> None:
        """Forgets all values of the series with this number."""
        self.values[:, :, series] = np.nan
        self._total[:, series] = 0.0
        self._count[:, series] = 0.0

    def first_bin(self, level: int, first: int, last: int) -> int:
        """Returns the number of the earliest known bin of a level in [first, last]; `last` if there is none."""
        bins = self.bins[level]
        return int(bins[(bins >= first) & (bins <= last)].min(initial=last))

    def read(self, level: int, first: int, last: int) -> Row:
        """Returns the means of bins `first` to `last`, both included, (bins, series); NaN where a bin is not kept."""
        wanted = np.arange(first, last + 1)
        place = wanted % POINTS
        found: Row = self.values[level, place].astype(np.float64)
        found[self.bins[level, place] != wanted] = np.nan
        return found
