"""Makes the texts and rates that `streamer stat` and `streamer top` show of an engine's statistics. No I/O.

Used by `stat_command.py`, `top_command.py` and `sparklines.py`. A *reading* is the statistics of an engine at one time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from streamer.config import format_bytes

# Values by name: of an engine, or of one of its sessions, datasets, peers or members.
Statistics = Mapping[str, object]
# Cells of a table's row.
Row = tuple[str, ...]

_DATASET_HEADERS = ("dataset", "url", "samples", "size", "sessions")
_MEMBER_HEADERS = ("member", "job", "read", "fetched", "hits", "at most")
_PEER_HEADERS = ("peer", "state", "received", "first byte p95", "late", "failed", "wrong")
# Headers of columns that hold words, besides the first of a table; the others hold numbers.
WORDS = ("job", "url", "bottleneck", "state")
_DIGEST_LETTERS = 8
_URL_LETTERS = 48


@dataclass(frozen=True, slots=True)
class Rates:
    """Counts per second between two readings, or since the engine's start if there is only one.

    Attributes:
        store_bytes: bytes from the store.
        cache_bytes: bytes of hits.
        requests: requests to the store.
        refusals: answers of the store that ask for fewer requests (429, 503).
        peer_bytes: bytes from peers; None without peers.
    """

    store_bytes: float
    cache_bytes: float
    requests: float
    refusals: float
    peer_bytes: float | None


@dataclass(frozen=True, slots=True)
class _MemberBytes:
    """What the sessions of a job have read of a member of a mix.

    Attributes:
        needed: bytes of all uses.
        hit: bytes of the uses that were hits.
        bound: share of the member that the cache keeps, the largest share of hits of one reader.
    """

    needed: float = 0.0
    hit: float = 0.0
    bound: float = 0.0

    def plus(self, entry: Statistics) -> _MemberBytes:
        """Returns the sum with the bytes of one more session, and the bound that this one tells."""
        needed = self.needed + number(entry, "needed_bytes")
        hit = self.hit + number(entry, "hit_bytes")
        return _MemberBytes(needed, hit, number(entry, "hit_bound"))

    def texts(self) -> tuple[str, str, str]:
        """Returns cells of a table: bytes read, bytes fetched, and the share of hits."""
        return format_bytes(self.needed), format_bytes(self.needed - self.hit), _share(self.hit, self.needed)


class StatusView:
    """Computes what is shown of one reading of an engine's statistics.

    Args:
        now: the reading.
        before: an earlier reading. Without one, or if it is of another process, rates and shares are those since the
            engine's start.

    Attributes:
        now: the reading.
    """

    def __init__(self, now: Statistics, before: Statistics | None = None) -> None:
        self.now = now
        same = before is not None and before.get("pid") == now.get("pid")
        self._before: Statistics = before if before is not None and same else {}
        # If several sessions have one name, the first one counts.
        self._old_sessions = {session_name(entry): entry for entry in reversed(entries(self._before, "sessions"))}

    @property
    def is_of_interval(self) -> bool:
        """Whether rates and shares are those between two readings, not those since the start."""
        return bool(self._before)

    @property
    def rates(self) -> Rates:
        """The rates of bytes and requests."""
        seconds = max(1e-9, self._difference("uptime_seconds"))
        return Rates(
            store_bytes=self._difference("store_bytes") / seconds,
            cache_bytes=self._difference("hit_bytes") / seconds,
            requests=self._difference("store_requests") / seconds,
            refusals=self._difference("throttled") / seconds,
            peer_bytes=self._difference("peer_received_bytes") / seconds if "peer_members" in self.now else None,
        )

    @property
    def in_flight(self) -> float:
        """Number of requests to the store that are running."""
        return number(self.now, "in_flight")

    @property
    def first_byte_seconds(self) -> float | None:
        """Mean time to the first byte of the requests between the readings; None if there were none."""
        now, before = (entries(sample, "first_byte_buckets")[-1:] for sample in (self.now, self._before))
        requests = sum(number(entry, "count") for entry in now) - sum(number(entry, "count") for entry in before)
        return self._difference("first_byte_sum_seconds") / requests if requests > 0 else None

    @property
    def hit_share(self) -> float | None:
        """Share of hits in the bytes that were needed between the readings; None if none were needed."""
        needed = self._difference("needed_bytes")
        return self._difference("hit_bytes") / needed if needed > 0 else None

    @property
    def fill(self) -> float:
        """Share of the cache's limit that chunks take, 0 to 1."""
        limit = number(self.now, "limit_bytes")
        return self._taken / limit if limit else 0.0

    @property
    def sessions(self) -> list[Statistics]:
        """The sessions, sorted by `wait_share`, the largest first."""
        return sorted(entries(self.now, "sessions"), key=lambda entry: -self.wait_share(entry))

    def wait_share(self, session: Statistics) -> float:
        """Returns the share of its time that a session's consumer waited for the engine, 0 to 1."""
        waited, aged = self._measure_growth(session, "waiting_seconds")
        return min(1.0, max(0.0, waited / aged)) if aged > 0 else 0.0

    def samples_per_second(self, session: Statistics) -> float | None:
        """Returns the samples that a session's consumer reads per second; None while they cannot be known.

        That is so if its batch size is not known, or if no time has passed.
        """
        batch_samples = number(session, "batch_samples")
        steps, aged = self._measure_growth(session, "done")
        return max(0.0, steps) * batch_samples / aged if batch_samples and aged > 0 else None

    def _measure_growth(self, session: Statistics, name: str) -> tuple[float, float]:
        """Returns by how much a count of a session has grown between the readings, and in how many seconds.

        A session that began after the earlier reading has grown from 0.
        """
        old = self._old_sessions.get(session_name(session), {})
        if number(session, "age_seconds") <= number(old, "age_seconds"):  # a new session of the same name
            old = {}
        grown = number(session, name) - number(old, name)
        return grown, number(session, "age_seconds") - number(old, "age_seconds")

    # ------------------------------------------------------------ as text

    def lines(self) -> list[tuple[str, str]]:
        """Returns the lines about the whole engine: name and text of each."""
        now = self.now
        rates = self.rates
        pid, host, version = (printable(str(now.get(name, "?"))) for name in ("pid", "host", "version"))
        loop_share = self._difference("loop_cpu_seconds") / max(1e-9, self._difference("uptime_seconds"))
        p50, p99 = (milliseconds(now, f"first_byte_{name}_seconds") for name in ("p50", "p99"))
        disk = f"{amount(now, 'disk_free_bytes')} of {amount(now, 'disk_bytes')} free"
        folder = now.get("cache_dir", "?")
        trouble = ("retries", "throttled", "failures", "errors", "rejected_chunks")
        return [
            ("engine", f"pid {pid} on {host}, streamer {version}, up {duration(number(now, 'uptime_seconds'))}"),
            ("process", f"{count(now, 'connections')} connections, {amount(now, 'anonymous_bytes')} memory"),
            ("store", f"{format_bytes(rates.store_bytes)}/s, {rates.requests:,.0f} requests/s"),
            (
                "in flight",
                f"{count(now, 'in_flight')} requests of {count(now, 'window')}, {count(now, 'fetches')} chunks",
            ),
            ("loop", f"{loop_share:.0%} of a core, {count(now, 'fetch_processes')} fetch processes"),
            ("first byte", f"p50 {p50}, p99 {p99}"),
            ("cache", f"{format_bytes(rates.cache_bytes)}/s"),
            ("hits", self._hits()),
            ("fill", f"{format_bytes(self._taken)} of {amount(now, 'limit_bytes')} ({self.fill:.0%})"),
            ("disk", f"{disk}, {printable(str(folder))}"),
            ("tail", f"{count(now, 'hedges')} hedges, {count(now, 'hedge_wins')} of them first"),
            *self._row_lines(),
            *self._peer_lines(),
            ("trouble", ", ".join(f"{count(now, name)} {name.replace('_', ' ')}" for name in trouble)),
        ]

    def tables(self, most_members: int | None = None) -> list[tuple[Row, list[Row]]]:
        """Returns headers and rows of the tables of datasets, peers, members of mixes and sessions that have rows.

        Args:
            most_members: see `member_rows`.
        """
        found = [
            (_DATASET_HEADERS, self.dataset_rows()),
            (_PEER_HEADERS, self.peer_rows()),
            (_MEMBER_HEADERS, self.member_rows(most_members)),
        ]
        sessions = [self.session_cells(entry) for entry in self.sessions]
        found += [(tuple(cells), [tuple(each.values()) for each in sessions]) for cells in sessions[:1]]
        return [(headers, rows) for headers, rows in found if rows]

    def dataset_rows(self) -> list[Row]:
        """Returns a row for each dataset in use: digest, url, samples, size and sessions."""
        return [
            (
                str(entry.get("dataset", ""))[:_DIGEST_LETTERS],
                _shorten(printable(str(entry.get("url", "")))),
                count(entry, "samples"),
                amount(entry, "total_bytes"),
                count(entry, "sessions"),
            )
            for entry in entries(self.now, "datasets")
        ]

    def peer_rows(self) -> list[Row]:
        """Returns a row for each peer: its state, and counts since the engine started."""
        return [
            (
                printable(str(entry.get("address", ""))),
                str(entry.get("state", "")),
                amount(entry, "peer_received_bytes"),
                milliseconds(entry, "first_byte_p95_seconds"),
                count(entry, "peer_hedges"),
                count(entry, "peer_failures"),
                count(entry, "peer_wrong"),
            )
            for entry in entries(self.now, "peers")
        ]

    def member_rows(self, most: int | None = None) -> list[Row]:
        """Returns a row for each member of a mix and each job: sums over the job's sessions since these began.

        Args:
            most: number of rows, at most. If there are more members, those that fetch the largest number of bytes have
                rows, and the others one row together. None means all.
        """
        found: dict[tuple[str, str], _MemberBytes] = {}
        for entry in entries(self.now, "members"):
            key = printable(str(entry.get("member", ""))), printable(str(entry.get("job", "")))
            found[key] = found.get(key, _MemberBytes()).plus(entry)
        members = sorted(found.items(), key=lambda item: item[1].hit - item[1].needed)
        cut = len(members) if most is None or len(members) <= most else most - 1
        rows: list[Row] = [(*key, *read.texts(), f"{read.bound:.1%}") for key, read in members[:cut]]
        if rest := [read for _, read in members[cut:]]:
            others = _MemberBytes(sum(read.needed for read in rest), sum(read.hit for read in rest))
            rows.append((f"{len(rest)} more", "", *others.texts(), "-"))
        return rows

    def session_cells(self, session: Statistics) -> dict[str, str]:
        """Returns the row of a session in the table of sessions: header -> cell, in the order of the columns.

        "waiting" is the waiting for the engine, "loader" that of the trainer for its loader.
        """
        loader_share, bottleneck = _last_report(session)
        return {
            "consumer": printable(str(session.get("consumer", ""))),
            "job": printable(str(session.get("job", ""))),
            "epoch": str(session.get("epoch", "")),
            "step": count(session, "done"),
            "waiting": str(session["failed"]) if session.get("failed") else f"{self.wait_share(session):.1%}",
            "hits": _share(number(session, "epoch_hit_bytes"), number(session, "epoch_needed_bytes")),
            "loader": loader_share,
            "bottleneck": bottleneck,
        }

    def worst_advice(self) -> str:
        """Returns a line with the last report of the first session, the one that waits longest; "" if it has none."""
        for entry in self.sessions[:1]:
            text = _last_report(entry)[1]
            return f"waits most: {printable(str(entry.get('consumer', '')))}: {text}" if text else ""
        return ""

    def worst_loader(self) -> str:
        """Returns the end of a line about the loader for which its trainer waits longest; "" if no loader reports."""
        reporting = [entry for entry in self.sessions if isinstance(entry.get("loader_waiting_share"), int | float)]
        if not reporting:
            return ""
        worst = max(reporting, key=lambda entry: number(entry, "loader_waiting_share"))
        bottleneck = printable(f"{worst.get('consumer', '')}: {worst.get('bottleneck', '')}")
        return f"  loader {number(worst, 'loader_waiting_share'):.1%} ({bottleneck})"

    # ------------------------------------------------------------ inside

    @property
    def _taken(self) -> float:
        return number(self.now, "kept_bytes") + number(self.now, "transit_bytes")

    def _row_lines(self) -> list[tuple[str, str]]:
        """Returns a line about loaders that pack documents into rows: the worst of their figures; none without them."""
        packing = [entry for entry in self.sessions if isinstance(entry.get("row_padding"), int | float)]
        if not packing:
            return []
        padding, spread, left_out = (
            max(number(entry, f"row_{name}") for entry in packing) for name in ("padding", "cost_spread", "left_out")
        )
        tokens = sum(number(entry, "row_tokens") for entry in packing)
        without = f", {left_out:,.0f} tokens of an epoch left out" if left_out else ""
        return [
            ("rows", f"{1 - padding:.2%} full, {tokens:,.0f} tokens, costs of batches spread by {spread:.1%}{without}")
        ]

    def _peer_lines(self) -> list[tuple[str, str]]:
        """Returns the lines about peers; none if the engine has no peers."""
        if "peer_members" not in self.now:
            return []
        seconds = max(1e-9, self._difference("uptime_seconds"))
        came, went = (
            format_bytes(self._difference(name) / seconds) for name in ("peer_received_bytes", "served_bytes")
        )
        up = number(self.now, "peer_members") - number(self.now, "peer_members_down")
        return [
            ("peers", f"{up:.0f} of {count(self.now, 'peer_members')} up, {came}/s from them, {went}/s to them"),
            ("homes", f"{number(self.now, 'home_share'):.1%} of the chunks are kept here"),
        ]

    def _hits(self) -> str:
        """Describes the share of hits in the needed bytes: of the running epochs, or since the start if none runs."""
        needed = sum(number(entry, "epoch_needed_bytes") for entry in self.sessions)
        if needed:
            share = sum(number(entry, "epoch_hit_bytes") for entry in self.sessions) / needed
            return f"{share:.1%} so far, the cache keeps {number(self.now, 'hit_bound'):.1%} of the data"
        if ever := number(self.now, "needed_bytes"):
            return f"{number(self.now, 'hit_bytes') / ever:.1%} since the engine started; no epoch runs now"
        return "nothing was needed yet"

    def _difference(self, name: str) -> float:
        return number(self.now, name) - number(self._before, name)


def entries(statistics: Statistics, table: str) -> list[Statistics]:
    """Returns the entries of a list in the statistics, such as "sessions"; an empty list if it is missing."""
    found = statistics.get(table, [])
    return cast("list[Statistics]", found) if isinstance(found, Sequence) else []


def session_name(session: Statistics) -> tuple[object, ...]:
    """Returns job, consumer and dataset of a session, which tell it from the others."""
    return session.get("job"), session.get("consumer"), session.get("dataset")


def number(statistics: Statistics, name: str) -> float:
    """Returns the number with this name; 0 if it is missing, as in an older engine."""
    found = statistics.get(name, 0)
    return float(found) if isinstance(found, int | float) else 0.0


def count(statistics: Statistics, name: str) -> str:
    """Formats the number with this name as a whole number with separators."""
    return f"{number(statistics, name):,.0f}"


def amount(statistics: Statistics, name: str) -> str:
    """Formats the number of bytes with this name."""
    return format_bytes(number(statistics, name))


def milliseconds(statistics: Statistics, name: str) -> str:
    """Formats the seconds with this name as milliseconds; "-" while they are 0 or not known."""
    seconds = number(statistics, name)
    return f"{seconds * 1000:.0f} ms" if seconds else "-"


def duration(seconds: float) -> str:
    """Formats a duration as hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def printable(text: str) -> str:
    """Returns a name that a client has chosen with question marks for characters that cannot be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _last_report(session: Statistics) -> tuple[str, str]:
    """Returns two cells of a session: its loader's last share of waiting and bottleneck, or "-" and "" without one."""
    share = session.get("loader_waiting_share")
    bottleneck = printable(str(session.get("bottleneck") or ""))
    if not isinstance(share, int | float):
        return "-", ""
    advice = printable(str(session.get("advice") or ""))
    return f"{share:.1%}", f"{bottleneck}: {advice}" if advice else bottleneck


def _share(part_value: float, whole_value: float) -> str:
    return f"{part_value / whole_value:.1%}" if whole_value else "-"


def _shorten(text: str) -> str:
    half = _URL_LETTERS // 2 - 1
    return text if len(text) <= _URL_LETTERS else f"{text[:half]}..{text[-half:]}"
