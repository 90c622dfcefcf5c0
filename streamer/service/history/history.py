"""Keeps the history of an engine in bounded memory: series of the engine and of its ranks, its jobs, and marks. No I/O.

`recorder.py` fills it and saves it. `service/web.py` sends it to the page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np

from streamer.errors import without_secrets
from streamer.service.history.rings import DEFAULT_SECONDS, POINTS, STEPS, Rings, Row, choose_level

# Kinds of marks: a start of the engine, the beginning of an epoch, a warning.
What = Literal["engine", "epoch", "warning"]

# Marks that are kept of each kind: a store that warns all night does not push out the restarts of the engine.
MAX_MARKS = 40
_MAX_MARK_LETTERS = 200
# Warnings that follow each other within this time are one mark.
_APART_SECONDS = 10.0


class Mark(msgspec.Struct):
    """A moment that the page marks on its curves: one event, or several warnings that followed each other.

    Attributes:
        at_seconds: Unix time of the first event.
        what: kind of the mark.
        text: says what happened, for people; the last one's text if there are several events.
        count: number of events.
    """

    at_seconds: float
    what: What
    text: str
    count: int = 1


class Marks:
    """The newest marks of each kind."""

    def __init__(self) -> None:
        self._kinds: dict[What, deque[Mark]] = {}

    def __repr__(self) -> str:
        return f"Marks({ {what: len(marks) for what, marks in self._kinds.items()} })"

    def __iter__(self) -> Iterator[Mark]:
        """Yields all marks in order of time."""
        return iter(sorted((mark for marks in self._kinds.values() for mark in marks), key=lambda one: one.at_seconds))

    def add(self, at_seconds: float, what: What, text: str, count: int = 1) -> None:
        """Adds an event, as a mark of its own or, if it is a warning soon after another one, to that one's mark.

        Args:
            at_seconds: Unix time.
            what: kind of the event.
            text: what happened; see `clean_text`.
            count: number of events.
        """
        marks = self._kinds.setdefault(what, deque(maxlen=MAX_MARKS))
        shown = clean_text(text, _MAX_MARK_LETTERS)
        if what == "warning" and marks and 0 <= at_seconds - marks[-1].at_seconds < _APART_SECONDS:
            marks[-1].count += count
            marks[-1].text = shown
        else:
            marks.append(Mark(round(at_seconds, 3), what, shown, count))

    def restore(self, marks: Iterable[Mark]) -> None:
        """Adds the marks of an earlier engine, with the same rules as `add`."""
        for mark in marks:
            self.add(mark.at_seconds, mark.what, mark.text, mark.count)


def clean_text(text: str, max_letters: int) -> str:
    """Returns a text that may come from a client for the page: cut, on one line, without secrets of urls.

    Characters that cannot be printed become question marks.
    """
    shown = without_secrets(text)[:max_letters]
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


# Names of the engine's series; docs/deploy/monitoring.md describes them. A ratio is kept as two series, so that its
# value over an hour is that of all requests, not the mean of 3,600 ratios.
SERIES = (
    *("samples", "waiting", "store_bytes", "hit_bytes", "needed_bytes", "peer_bytes", "in_flight"),
    *("first_bytes", "first_byte_seconds", "fill", "throttled", "retries", "failures"),
)
# Ranks with curves of their own: a node has eight GPUs, seldom sixteen. All ranks count in "samples" and "waiting".
MAX_RANKS = 24
# Series of each rank besides its samples: fields of `RankSample`.
SHARES = ("waiting", "loader")
MAX_JOBS = 32
# A job that comes back after this time begins anew.
_GONE_SECONDS = 900.0
_MAX_NAME_LETTERS = 120
# Significant digits of values in JSON, more than a curve shows.
_DIGITS = 4

# Job, consumer and dataset of a rank.
RankKey = tuple[str, str, str]


class RankSample(msgspec.Struct):
    """One second of a rank; a value that is not known is NaN.

    Attributes:
        samples: samples per second.
        waiting: share of its time that it waited for the engine, 0 to 1.
        loader: share of its time that the trainer waited for the loader, as the loader last reported it.
    """

    samples: float
    waiting: float
    loader: float


class Rank(msgspec.Struct):
    """A rank with curves of its own, and the Unix time at which it was last connected."""

    job: str
    consumer: str
    dataset: str
    seen_at: float


class JobSpan(msgspec.Struct):
    """The Unix times at which a job was first and last connected."""

    began_at: float
    seen_at: float


class SavedHistory(msgspec.Struct):
    """A history as it is written to a file.

    Attributes:
        layout: `LAYOUT` of the engine that wrote it; another one is not read.
        rings: bytes of the values and of the bins of each of the three `Rings`.
        ranks: ranks by place; None where a place is free.
        jobs: jobs by name.
        marks: all marks.
    """

    layout: str
    rings: list[bytes]
    ranks: list[Rank | None]
    jobs: dict[str, JobSpan]
    marks: list[Mark]


LAYOUT = f"1 {POINTS} {STEPS} {SERIES} {MAX_RANKS} {SHARES}"


class History:
    """Keeps what happened in an engine, and in earlier engines of the same cache folder. Used on one loop.

    Attributes:
        marks: marks of the engine.
    """

    def __init__(self) -> None:
        self.marks = Marks()
        self._engine = Rings(len(SERIES), np.float32)
        self._samples = Rings(MAX_RANKS, np.float32)
        self._shares = Rings(MAX_RANKS * len(SHARES), np.float16)
        self._ranks: list[Rank | None] = [None] * MAX_RANKS
        self._left_out = 0
        self._jobs: dict[str, JobSpan] = {}

    def __repr__(self) -> str:
        return f"History({self._engine!r}, ranks={sum(rank is not None for rank in self._ranks)})"

    @property
    def nbytes(self) -> int:
        """Size of its arrays in bytes."""
        return sum(rings.nbytes for rings in self._all_rings)

    @property
    def _all_rings(self) -> tuple[Rings, Rings, Rings]:
        return self._engine, self._samples, self._shares

    # ------------------------------------------------------------ what is kept

    def add(self, at_seconds: int, engine: Mapping[str, float], ranks: Mapping[RankKey, RankSample]) -> None:
        """Adds one second.

        Args:
            at_seconds: Unix time, not before that of the last call.
            engine: values by the names of `SERIES`; one that is missing is not known.
            ranks: ranks that are connected. Those without a free place get no curves.
        """
        samples = np.full(MAX_RANKS, np.nan)
        shares = np.full((MAX_RANKS, len(SHARES)), np.nan)
        places = self._place(at_seconds, ranks)
        for key, place in places.items():
            rank = ranks[key]
            samples[place] = rank.samples
            shares[place] = rank.waiting, rank.loader
        self._left_out = len(ranks) - len(places)
        self._note_jobs(at_seconds, {job for job, _, _ in ranks})
        self._engine.add(at_seconds, np.array([engine.get(name, np.nan) for name in SERIES]))
        self._samples.add(at_seconds, samples)
        self._shares.add(at_seconds, shares.ravel())

    def _place(self, at_seconds: float, ranks: Mapping[RankKey, RankSample]) -> dict[RankKey, int]:
        """Returns the place of each connected rank that has one in the arrays.

        A new rank gets a free place, or that of the rank that has been away for longest, whose values are forgotten.
        """
        known = {(rank.job, rank.consumer, rank.dataset): at for at, rank in enumerate(self._ranks) if rank is not None}
        places = {key: known[key] for key in ranks if key in known}
        fresh = [key for key in ranks if key not in known]
        if fresh:
            taken = set(places.values())
            free = sorted(
                set(range(MAX_RANKS)) - taken, key=lambda at: rank.seen_at if (rank := self._ranks[at]) else 0
            )
            for key, place in zip(fresh, free, strict=False):
                self._samples.clear(place)
                for share in range(len(SHARES)):
                    self._shares.clear(place * len(SHARES) + share)
                self._ranks[place] = Rank(*key, seen_at=at_seconds)
                places[key] = place
        for place in places.values():
            if (rank := self._ranks[place]) is not None:
                rank.seen_at = at_seconds
        return places

    def _note_jobs(self, at_seconds: float, jobs: set[str]) -> None:
        """Updates the times of connected jobs; forgets jobs that have been away for long, or that are too many."""
        self._jobs = {
            name: job
            for name, job in self._jobs.items()
            if 0 <= at_seconds - job.seen_at < _GONE_SECONDS or name in jobs
        }
        for name in jobs:
            job = self._jobs.pop(name, None)
            if job is None or at_seconds - job.seen_at >= _GONE_SECONDS:
                job = JobSpan(began_at=at_seconds, seen_at=at_seconds)
            job.seen_at = at_seconds
            self._jobs[name] = job
        while len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]

    # ------------------------------------------------------------ what is shown

    def to_json(self, now: float, seconds: float = DEFAULT_SECONDS) -> bytes:
        """Returns the last `seconds` of the history, at most 43 days, as JSON; docs/deploy/monitoring.md describes it.

        Args:
            now: Unix time at which it ends.
            seconds: length. The answer has the finest bins that go back so far, and begins with the first known bin.
        """
        level = choose_level(seconds)
        step = STEPS[level]
        last = int(now) // step
        earliest = max(last - POINTS + 1, int(now - seconds) // step)
        first = self._engine.first_bin(level, earliest, last)
        shares = self._shares.read(level, first, last).reshape(-1, MAX_RANKS, len(SHARES))
        samples = self._samples.read(level, first, last)
        engine = dict(zip(SERIES, self._engine.read(level, first, last).T, strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            engine["hits"] = engine["hit_bytes"] / engine.pop("needed_bytes")
            engine["first_byte_seconds"] = engine["first_byte_seconds"] / engine.pop("first_bytes")
        answer = {
            "now": round(now, 3),
            "start": first * step,
            "step": step,
            "engine": {name: _shorten(column) for name, column in engine.items()},
            "ranks": [
                {
                    **describe_rank(rank),
                    "connected": now - rank.seen_at < 2 * STEPS[0],
                    "samples": _shorten(samples[:, place]),
                    **{name: _shorten(shares[:, place, at]) for at, name in enumerate(SHARES)},
                }
                for place, rank in enumerate(self._ranks)
                if rank is not None and np.isfinite(shares[:, place]).any()
            ],
            "ranks_left_out": self._left_out,
            "jobs": [
                {"job": clean_text(name, _MAX_NAME_LETTERS), "seconds": round(now - job.began_at, 3)}
                for name, job in self._jobs.items()
            ],
            "marks": [mark for mark in self.marks if first * step <= mark.at_seconds <= now],
        }
        return msgspec.json.encode(answer)

    # ------------------------------------------------------------ over a restart

    def encode(self) -> bytes:
        """Returns the whole history as bytes for a file."""
        rings = [column.tobytes() for ring in self._all_rings for column in (ring.values, ring.bins)]
        return msgspec.msgpack.encode(
            SavedHistory(layout=LAYOUT, rings=rings, ranks=self._ranks, jobs=self._jobs, marks=list(self.marks))
        )

    def restore(self, content: bytes) -> None:
        """Takes over the history of an earlier engine; called before the first `add`.

        Args:
            content: bytes that `encode` returned there.

        Raises:
            ValueError: it has another layout, or is damaged.
        """
        saved = msgspec.msgpack.decode(content, type=SavedHistory)
        columns = [column for ring in self._all_rings for column in (ring.values, ring.bins)]
        lengths = [len(content) for content in saved.rings]
        if saved.layout != LAYOUT or lengths != [column.nbytes for column in columns]:
            raise ValueError("it has another layout")
        if len(saved.ranks) != MAX_RANKS or len(saved.jobs) > MAX_JOBS:
            raise ValueError(f"it has {len(saved.ranks)} ranks and {len(saved.jobs)} jobs")
        for column, content in zip(columns, saved.rings, strict=True):
            column[...] = np.frombuffer(content, column.dtype).reshape(column.shape)
        self._ranks = list(saved.ranks)
        self._jobs = dict(saved.jobs)
        self.marks.restore(saved.marks)


def describe_rank(rank: Rank) -> dict[str, str]:
    """Returns the names of a rank for the page, cleaned because clients have chosen them."""
    return {
        "job": clean_text(rank.job, _MAX_NAME_LETTERS),
        "consumer": clean_text(rank.consumer, _MAX_NAME_LETTERS),
        "dataset": clean_text(rank.dataset, _MAX_NAME_LETTERS),
    }


def _shorten(column: Row) -> list[float]:
    """Returns the numbers rounded to `_DIGITS` significant digits; NaN stays, and becomes null in JSON."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.abs(column))))
        shown = np.where(np.isfinite(scale), np.round(column * scale) / scale, column)
    found: list[float] = shown.tolist()
    return found
