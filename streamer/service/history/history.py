"""The history of an engine: its series, those of its ranks, its jobs, and marks. Pure; bounded in every direction."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np

from streamer.errors import without_secrets
from streamer.service.history.rings import DEFAULT_SECONDS, POINTS, STEPS, Rings, Row, choose_level

What = Literal["engine", "epoch", "warning"]

# A kind has room of its own: a store that warns all night does not push out when the engine was restarted.
MAX_MARKS = 40
_MAX_MARK_LETTERS = 200
# Marks of one kind that are closer are one mark.
_APART_SECONDS = 10.0


class Mark(msgspec.Struct):
    """A moment.

    Attributes:
        at_seconds: Unix time of the first event.
        text: what happened, for people; of several events the last one.
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
        """Adds an event; its text is cut, without control characters and secrets of urls.

        Warnings that follow within seconds count as one mark. Epochs and restarts stay apart: each has its own text.
        """
        marks = self._kinds.setdefault(what, deque(maxlen=MAX_MARKS))
        shown = clean_text(text, _MAX_MARK_LETTERS)
        if what == "warning" and marks and 0 <= at_seconds - marks[-1].at_seconds < _APART_SECONDS:
            marks[-1].count += count
            marks[-1].text = shown
        else:
            marks.append(Mark(round(at_seconds, 3), what, shown, count))

    def restore(self, marks: Iterable[Mark]) -> None:
        """Adds the marks of an earlier engine; texts are cleaned again."""
        for mark in marks:
            self.add(mark.at_seconds, mark.what, mark.text, mark.count)


def clean_text(text: str, max_letters: int) -> str:
    """Returns a client's text for the page: cut, on one line, without logins and signatures of urls."""
    shown = without_secrets(text)[:max_letters]
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


# The series of the engine. A ratio on the page is kept as sum and count: its mean over an hour is that of all requests,
# not of 3,600 means.
SERIES = (
    *("samples", "waiting", "store_bytes", "hit_bytes", "needed_bytes", "peer_bytes", "in_flight"),
    *("first_bytes", "first_byte_seconds", "fill", "throttled", "retries", "failures"),
)
# Ranks with curves of their own: a node has eight GPUs, seldom sixteen. All count in "samples" and "waiting".
MAX_RANKS = 24
SHARES = ("waiting", "loader")
MAX_JOBS = 32
# A job that comes back after this begins anew.
_GONE_SECONDS = 900.0
_MAX_NAME_LETTERS = 120
_DIGITS = 4

RankKey = tuple[str, str, str]


class RankSample(msgspec.Struct):
    """One second of a consumer; NaN is unknown.

    Attributes:
        samples: samples per second.
        waiting: share of its time that it waited for the engine.
        loader: share that its loader last reported, whatever it waited for.
    """

    samples: float
    waiting: float
    loader: float


class Rank(msgspec.Struct):
    """A consumer with curves of its own, and when it was last connected."""

    job: str
    consumer: str
    dataset: str
    seen_at: float


class JobSpan(msgspec.Struct):
    """When a job was first and last connected."""

    began_at: float
    seen_at: float


class SavedHistory(msgspec.Struct):
    """A history as it is written to a file; another layout of the rings is not read.

    Attributes:
        rings: values and bins of the three rings, in turns.
    """

    layout: str
    rings: list[bytes]
    ranks: list[Rank | None]
    jobs: dict[str, JobSpan]
    marks: list[Mark]


LAYOUT = f"1 {POINTS} {STEPS} {SERIES} {MAX_RANKS} {SHARES}"


class History:
    """What happened in an engine since it runs, and in those before it in the same folder."""

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
            at_seconds: Unix time.
            engine: values by the names of `SERIES`; one that is missing is unknown.
            ranks: consumers that are connected, by job, consumer and dataset.
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
        """Returns the place of each rank that has one; a new rank takes that of the one that is gone for longest."""
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
        """Returns the last `seconds` up to a Unix time, as docs/deploy/monitoring.md describes them."""
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
        """Returns all of it, for a file."""
        rings = [column.tobytes() for ring in self._all_rings for column in (ring.values, ring.bins)]
        return msgspec.msgpack.encode(
            SavedHistory(layout=LAYOUT, rings=rings, ranks=self._ranks, jobs=self._jobs, marks=list(self.marks))
        )

    def restore(self, content: bytes) -> None:
        """Takes over the history of an earlier engine from what `encode` returned.

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
    """Returns the names of a rank, which its client has chosen, for the page."""
    return {
        "job": clean_text(rank.job, _MAX_NAME_LETTERS),
        "consumer": clean_text(rank.consumer, _MAX_NAME_LETTERS),
        "dataset": clean_text(rank.dataset, _MAX_NAME_LETTERS),
    }


def _shorten(column: Row) -> list[float]:
    """Returns numbers with four digits, which is more than a curve shows; what is unknown becomes null in JSON."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.abs(column))))
        shown = np.where(np.isfinite(scale), np.round(column * scale) / scale, column)
    found: list[float] = shown.tolist()
    return found
